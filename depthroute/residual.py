"""What a residual connection does, in numbers small enough to check by hand: the text of `depthroute residual`.

Row vectors: a layer computes x W, a residual layer x + x W. All numbers are dyadic, so that float32 holds them exactly.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from depthroute.routing.contract import residual_add
from depthroute.routing.single_stream import SingleStreamParameters

X = np.array([2.0, -1.0], np.float32)
W = np.array([[0.25, -0.75], [1.5, 0.75]], np.float32)
UPSTREAM = np.array([1.0, 1.0], np.float32)
SHRINK = -0.25  # every layer's branch, in the stack of four
LAYERS = 4
STEP, TOLERANCE = 1e-5, 2e-6  # of the numeric gradient


def layer(x: jax.Array, w: jax.Array) -> jax.Array:
    """x + x W."""
    return residual_add(x, x @ w)


def gradients(function: Callable, *args: np.ndarray) -> tuple[np.ndarray, ...]:
    """Output of a function and the gradients of its arguments, for an upstream gradient of ones."""
    out, pull = jax.vjp(function, *map(jnp.asarray, args))
    return tuple(map(np.asarray, (out, *pull(jnp.ones_like(out)))))


def one_layer() -> dict[str, np.ndarray]:
    """Output and gradients of one layer, and the parts of the input's gradient."""
    y, dx, dw = gradients(layer, X, W)
    branch, through_branch, _ = gradients(lambda x, w: x @ w, X, W)
    return {
        "branch output": branch,
        "output": y,
        "identity's part of the input gradient": dx - through_branch,
        "branch's part of the input gradient": through_branch,
        "input gradient": dx,
        "weight gradient (row-major)": dw.ravel(),
    }


def zero_branch() -> dict[str, np.ndarray]:
    """The same with weights of zero: the layer is the identity, and can still learn."""
    y, dx, dw = gradients(layer, X, np.zeros_like(W))
    return {"output": y, "input gradient": dx, "weight gradient (row-major)": dw.ravel()}


def refusal() -> str:
    """What is said to shapes that ordinary addition would broadcast."""
    try:
        residual_add(jnp.ones((2, 2)), jnp.ones(2))
    except ValueError as error:
        return str(error)
    raise AssertionError("shapes (2, 2) and (2,) were added")


def stack(residual: bool) -> tuple[list[np.ndarray], np.ndarray]:
    """Outputs after each of four layers with branch -x/4, and the gradient of one input coordinate."""

    def layers(x: jax.Array) -> list[jax.Array]:
        outs = []
        for _ in range(LAYERS):
            x = residual_add(x, SHRINK * x) if residual else SHRINK * x
            outs.append(x)
        return outs

    _, dx = gradients(lambda x: layers(x)[-1], X)
    return [np.asarray(out) for out in layers(jnp.asarray(X))], dx[0]


def both_operands() -> np.ndarray:
    """The gradient of an array that is added to itself."""
    return gradients(lambda x: residual_add(x, x), X)[1]


def zero_at_a_point() -> tuple[np.ndarray, np.ndarray]:
    """A branch that is zero at X and nowhere near it, its value and its Jacobian there."""

    def branch(x: jax.Array) -> jax.Array:
        return x * (x - X)

    return np.asarray(branch(jnp.asarray(X))), np.asarray(jax.jacobian(branch)(jnp.asarray(X)))


def numeric_error() -> float:
    """Largest difference of the gradient of sum((x + x W)^2) from central differences, over all six coordinates, in float64."""
    with jax.enable_x64(True):
        point = np.concatenate([X, W.ravel()]).astype(np.float64)

        def loss(coordinates: jax.Array) -> jax.Array:
            return jnp.sum(layer(coordinates[:2], coordinates[2:].reshape(2, 2)) ** 2)

        exact = np.asarray(jax.grad(loss)(jnp.asarray(point)))
        steps = STEP * np.eye(len(point))
        numeric = np.array([float(loss(point + step) - loss(point - step)) / (2 * STEP) for step in steps])
    return float(np.max(np.abs(exact - numeric)))


def parameters() -> int:
    """How many parameters the residual add owns: those of the residual network's router."""
    return len(jax.tree.leaves(SingleStreamParameters({}).init(jax.random.key(0))))


def report() -> str:
    """The page, as Markdown; the same text everywhere."""
    plain, residual = stack(False), stack(True)
    value, jacobian = zero_at_a_point()
    rows = [f"| {depth + 1} | {_show(plain[0][depth])} | {_show(residual[0][depth])} |" for depth in range(LAYERS)]
    lines = [
        "# What a residual connection does",
        "",
        "Written by `depthroute residual`. Row vectors; a residual layer is y = x + x W.",
        "",
        f"x = {_show(X)}, W = [[0.25, -0.75], [1.5, 0.75]], upstream gradient {_show(UPSTREAM)}:",
        "",
        *(f"* {name}: {_show(number)}" for name, number in one_layer().items()),
        "",
        "With W = 0 the layer is the identity, and its weights get the same gradient:",
        "",
        *(f"* {name}: {_show(number)}" for name, number in zero_branch().items()),
        "",
        "Shapes that addition would broadcast are refused:",
        "",
        f"* {refusal()}",
        "",
        "Four layers whose branch is -x/4, without and with the residual:",
        "",
        "| layers | plain | residual |",
        "| -----: | ----- | -------- |",
        *rows,
        f"| gradient of the input | {_show(plain[1])} | {_show(residual[1])} |",
        "",
        f"An array added to itself gets twice the upstream gradient: {_show(both_operands())}",
        "",
        f"A branch x (x - a) is {_show(value)} at x = a, and its Jacobian there is not: {_show(jacobian.ravel())}",
        "",
        f"The gradient of sum((x + x W)^2) is within {TOLERANCE:g} of central differences: {_yes(numeric_error() < TOLERANCE)}",
        "",
        f"Parameters of the residual add: {parameters()}",
    ]
    return "\n".join(lines)


def _show(numbers: np.ndarray) -> str:
    return str((np.asarray(numbers, np.float64) + 0.0).tolist())  # -0.0 + 0.0 is 0.0


def _yes(true: bool) -> str:
    return "yes" if true else "no"
