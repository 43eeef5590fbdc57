"""Imports what is large, torch and transformers, in less time. Changes nothing of what they do."""

from __future__ import annotations

import gc
import importlib
import sys
import threading

_lock = threading.RLock()


def import_quickly(name: str) -> None:
    """Import a module, and all that it imports, without looking for garbage meanwhile.

    Imports make a million objects that stay. Python looks through them again and again as they
    grow in number, a fifth of the time of importing torch and transformers, and later with each
    full collection; so they are set aside when all is there. Raises what the import raises.

    One thread does so at a time. transformers puts another object into `sys.modules` when it has
    been imported; whoever asks for a name of it meanwhile is given one from the former, which has
    few of them.
    """
    with _lock:
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
