"""Functional Flax blocks: pure functions hold the maths, thin Linen modules hold the parameters."""
