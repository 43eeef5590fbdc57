"""Imports what is large, torch and transformers, in less time. Changes nothing of what they do."""

from __future__ import annotations

import gc
import importlib
import sys


def import_quickly(name: str) -> None:
    """Import a module, and all that it imports, without looking for garbage meanwhile.

    Imports make a million objects that stay. Python looks through them again and again as they
    grow in number, a fifth of the time of importing torch and transformers, and later with each
    full collection; so they are set aside when all is there. Raises what the import raises.
    """
    if name in sys.modules:
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        importlib.import_module(name)
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
