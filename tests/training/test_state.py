"""The hash of the parameters, which runs are compared by."""

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from depthroute.training.parallel import make_mesh
from depthroute.training.state import params_sha256

TREE = {"a": {"VD": np.arange(6, dtype=np.float32).reshape(2, 3)}, "b": np.array([-0.0, 1.0], np.float32)}


def test_hash_changes_with_every_bit_of_every_leaf():
    seen = {params_sha256(TREE)}
    bits = 0
    for chosen in range(2):
        leaves, structure = jax.tree.flatten(TREE)
        for bit in range(8 * leaves[chosen].nbytes):
            raw = bytearray(leaves[chosen].tobytes())
            raw[bit // 8] ^= 1 << bit % 8
            changed = np.frombuffer(bytes(raw), np.float32).reshape(leaves[chosen].shape)
            seen.add(params_sha256(structure.unflatten([changed if i == chosen else leaf for i, leaf in enumerate(leaves)])))
            bits += 1
    assert len(seen) == 1 + bits == 1 + 8 * 4 * 8


def test_hash_changes_with_names_shapes_and_types():
    a_VD, b = TREE["a"]["VD"], TREE["b"]
    others = [
        {"a": {"DV": a_VD}, "b": b},
        {"a": {"VD": a_VD.reshape(3, 2)}, "b": b},
        {"a": {"VD": a_VD.view(np.int32)}, "b": b},
        {"a": {"VD": a_VD}, "c": b},
        {"a": {"VD": a_VD}},
    ]
    assert len({params_sha256(tree) for tree in [TREE, *others]}) == 6


def test_hash_depends_on_nothing_else():
    expected = params_sha256(TREE)
    mesh = make_mesh(2, 1)
    spread = jax.device_put(TREE["b"], NamedSharding(mesh, PartitionSpec("data")))
    assert params_sha256({"b": TREE["b"], "a": TREE["a"]}) == expected
    assert params_sha256(jax.tree.map(jax.numpy.asarray, TREE)) == expected
    assert params_sha256({"a": {"VD": np.asfortranarray(TREE["a"]["VD"])}, "b": spread}) == expected
