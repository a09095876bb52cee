"""What a checkpoint holds and a step transforms."""

import hashlib
from typing import Any, NamedTuple

import jax
import numpy as np


class TrainState(NamedTuple):
    """`step` counts finished updates. Data order and initial values follow from the seed and the step, so no key is kept."""

    step: jax.Array
    params: Any
    opt_state: Any


def params_sha256(params: Any) -> str:
    """A hash of every parameter's path, shape, dtype and bytes."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree.leaves_with_path(params):
        array = np.asarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {array.shape} {array.dtype};".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
