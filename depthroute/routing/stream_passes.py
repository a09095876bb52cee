"""The two passes over n streams, a read and a write, with backward passes by hand that keep nothing but the inputs.

The streams of a token lie next to each other, [B, T, N, D], so that every sum over streams or over the width is one small
matrix product a token. On CPU these read memory several times faster than a sum over the width for each pair of streams, and
XLA makes the result of a product once, where it would make a sum of few terms again for every entry of the next pass.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from depthroute.nn.norm import wide

KEPT = "kept"  # checkpoint name of small arrays that cost a pass over all streams, or all iterations, to make again

keep = partial(checkpoint_name, name=KEPT)


def _product(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """An einsum of arrays of any dtypes, in at least float32."""
    return jnp.einsum(
        equation, a, b, preferred_element_type=jnp.promote_types(jnp.promote_types(a.dtype, b.dtype), jnp.float32)
    )


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def project(inputs_AX: jax.Array, maps_EX: jax.Array, eps: float) -> jax.Array:
    """norm(inputs) maps^T, [A, E] for A tokens: the norm is applied after the product, so that one pass serves both."""
    return _project_forward(inputs_AX, maps_EX, eps)[0]


def _project_forward(inputs, maps_EX, eps):
    square = keep(jnp.mean(jnp.square(inputs), axis=-1, keepdims=True)) + eps
    out = keep(inputs @ maps_EX.T) * jax.lax.rsqrt(square)
    return out, (inputs, maps_EX, square, out)


def _project_backward(eps, kept, dout):
    inputs, maps_EX, square, out = kept
    dproduct = dout * jax.lax.rsqrt(square)
    along = sum((dout * out)[:, e] for e in range(len(maps_EX)))[:, None] / (square * inputs.shape[1])
    return dproduct @ maps_EX - along * inputs, dproduct.T @ inputs


project.defvjp(_project_forward, _project_backward)


@jax.custom_vjp
def read_streams(read_BTN: jax.Array, streams_BTND: jax.Array) -> jax.Array:
    """sum_n a_n h_n: [B, T, D] in the streams' dtype."""
    return _product("BTN,BTND->BTD", read_BTN, streams_BTND).astype(streams_BTND.dtype)


def _read_forward(read_BTN, streams_BTND):
    return read_streams(read_BTN, streams_BTND), (read_BTN, streams_BTND)


def _read_backward(kept, dx_BTD):
    read_BTN, streams_BTND = kept
    dread_BTN = _product("BTND,BTD->BTN", streams_BTND, dx_BTD)
    dstreams_BTND = read_BTN[..., None] * wide(dx_BTD)[:, :, None]
    return dread_BTN.astype(read_BTN.dtype), dstreams_BTND.astype(streams_BTND.dtype)


read_streams.defvjp(_read_forward, _read_backward)


@jax.custom_vjp
def write_streams(
    carry_BTON: jax.Array | None, write_BTO: jax.Array, streams_BTND: jax.Array, update_BTD: jax.Array
) -> jax.Array:
    """h'_o = sum_n c_{o,n} h_n + b_o u: [B, T, O, D] in the streams' dtype; a carry of None stands for c = I."""
    carried_BTOD = streams_BTND if carry_BTON is None else _product("BTON,BTND->BTOD", carry_BTON, streams_BTND)
    written_BTOD = write_BTO[..., None] * wide(update_BTD)[:, :, None]
    return (carried_BTOD + written_BTOD).astype(streams_BTND.dtype)


def _write_forward(*inputs):
    return write_streams(*inputs), inputs


def _write_backward(inputs, dout_BTOD):
    carry_BTON, write_BTO, streams_BTND, update_BTD = inputs
    dwrite_BTO = _product("BTOD,BTD->BTO", dout_BTOD, update_BTD).astype(write_BTO.dtype)
    dupdate_BTD = _product("BTO,BTOD->BTD", write_BTO, dout_BTOD).astype(update_BTD.dtype)
    if carry_BTON is None:
        return None, dwrite_BTO, dout_BTOD, dupdate_BTD
    dcarry_BTON = _product("BTOD,BTND->BTON", dout_BTOD, streams_BTND).astype(carry_BTON.dtype)
    dstreams_BTND = sum(carry_BTON[:, :, o, :, None] * wide(dout_BTOD)[:, :, o, None] for o in range(carry_BTON.shape[2]))
    return dcarry_BTON, dwrite_BTO, dstreams_BTND.astype(streams_BTND.dtype), dupdate_BTD


write_streams.defvjp(_write_forward, _write_backward)


def read_fractions(read_BTON: jax.Array, fractions_BTND: jax.Array) -> jax.Array:
    """sum_n a_{o,n} h_n of all fractions o side by side: [B, T, N D] in the fractions' dtype."""
    mixed_BTOD = _product("BTON,BTND->BTOD", read_BTON, fractions_BTND).astype(fractions_BTND.dtype)
    return mixed_BTOD.reshape(*mixed_BTOD.shape[:2], -1)


def write_fractions(carry_BTON: jax.Array, write_BTO: jax.Array, fractions_BTND: jax.Array, update_BTD: jax.Array) -> jax.Array:
    """h'_o = sum_n c_{o,n} h_n + b_o u_o, where u_o is a fraction of the update: [B, T, O, D] in the fractions' dtype."""
    carried_BTOD = _product("BTON,BTND->BTOD", carry_BTON, fractions_BTND)
    written_BTOD = write_BTO[..., None] * wide(update_BTD.reshape(fractions_BTND.shape))
    return (carried_BTOD + written_BTOD).astype(fractions_BTND.dtype)
