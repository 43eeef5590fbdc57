"""How often a process that reads files looks for garbage."""

from __future__ import annotations

import gc

#: New objects, many times as many as Python would wait for. Reading a file makes millions, which
#: end without help; looking through them took a fifteenth of its CPU time, and freed nothing.
_NEW_OBJECTS = 50_000


def look_for_garbage_seldom() -> None:
    """For a process that has all of its modules."""
    gc.freeze()
    _, *older = gc.get_threshold()
    gc.set_threshold(_NEW_OBJECTS, *older)
