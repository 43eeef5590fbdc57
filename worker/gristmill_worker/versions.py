"""The versions of all that the numbers of a row may depend on, for its receipt."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version

_PACKAGES = ("gristmill", "torch", "transformers")


@cache
def engine_version() -> str:
    """One line, as "gristmill 1.2.3, torch 2.13.0, transformers 5.24.0"."""
    return ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
