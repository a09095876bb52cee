"""The numbers of a residual connection, as worked out by hand, and the page that shows them."""

from pathlib import Path

import numpy as np

from depthroute import residual

PAGE = Path(__file__).parents[1] / "docs" / "residual.md"


def expect(found, expected):
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected, np.float32))


def test_one_layer():
    found = residual.one_layer()
    expect(found["branch output"], [-1, -2.25])
    expect(found["output"], [1, -3.25])
    expect(found["identity's part of the input gradient"], [1, 1])
    expect(found["branch's part of the input gradient"], [-0.5, 2.25])
    expect(found["input gradient"], [0.5, 3.25])
    expect(found["weight gradient (row-major)"], [2, 2, -1, -1])


def test_a_branch_with_zero_weights_is_the_identity_and_can_learn():
    found = residual.zero_branch()
    expect(found["output"], residual.X)
    expect(found["input gradient"], residual.UPSTREAM)
    expect(found["weight gradient (row-major)"], [2, 2, -1, -1])


def test_shapes_that_would_broadcast_are_refused():
    assert np.broadcast_shapes((2, 2), (2,)) == (2, 2)
    assert "(2, 2) and (2,)" in residual.refusal()


def test_four_layers():
    plain, residual_outs = residual.stack(False), residual.stack(True)
    for depth in range(4):
        expect(plain[0][depth], residual.X * (-0.25) ** (depth + 1))
        expect(residual_outs[0][depth], residual.X * 0.75 ** (depth + 1))
    expect(plain[0][0], [-0.5, 0.25])
    expect(plain[0][3], [0.0078125, -0.00390625])
    expect(residual_outs[0][0], [1.5, -0.75])
    expect(residual_outs[0][3], [0.6328125, -0.31640625])
    expect(plain[1], 0.00390625)
    expect(residual_outs[1], 0.31640625)


def test_an_array_added_to_itself_gets_its_gradient_twice():
    expect(residual.both_operands(), 2 * residual.UPSTREAM)


def test_a_branch_that_is_zero_at_a_point_still_passes_gradients():
    value, jacobian = residual.zero_at_a_point()
    expect(value, [0, 0])
    expect(jacobian, np.diag(residual.X))


def test_the_gradient_is_that_of_small_differences():
    assert residual.numeric_error() < 2e-6


def test_the_residual_add_owns_nothing():
    assert residual.parameters() == 0


def test_the_page_is_what_the_command_prints():
    assert PAGE.read_text() == residual.report() + "\n"
