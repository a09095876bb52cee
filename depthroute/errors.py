"""The one kind of error a user can cause, and the one form it is told in."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can mend. The command line prints it as one line, without a traceback."""


def bad_value(thing: str, found: object, allowed: str, where: str) -> UserError:
    """The standard message: the thing, the value found, what is allowed, where to set it."""
    return UserError(f"{thing} is {found!r}; allowed: {allowed}; set it in {where}")


def unknown_name(kind: str, found: str, known: Iterable[str], where: str) -> UserError:
    """An unknown name, with the nearest known one first and then all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(found, names, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return UserError(f"unknown {kind} {found!r}{hint}; known: {', '.join(names)}; set it in {where}")
