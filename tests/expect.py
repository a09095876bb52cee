"""Expectations that several tests share."""

import numpy as np
import pytest

from depthroute.errors import UserError


def refused(call, *parts):
    """`call` raises a UserError of one line that contains every part."""
    with pytest.raises(UserError) as error:
        call()
    message = str(error.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, f"{part!r} is not in {message!r}"


def largest_difference(a, b):
    """Largest difference of any entry, relative to the largest entry of b."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return np.max(np.abs(a - b)) / np.max(np.abs(b))
