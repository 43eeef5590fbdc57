"""Builds a C source of ours on this machine and loads it. What is in it, its own module knows.

The machine's own C compiler builds it at first use. The library is kept in a cache folder, under a
name made of its text, the flags and this processor.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

_FLAGS = (
    "-O3",
    "-march=native",
    "-fopenmp",  # torch has loaded the OpenMP of this name already, so both share its threads
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wno-psabi",
    "-shared",
    "-fPIC",
)


def load_native(source: Path, cache_dir: Path) -> ctypes.CDLL | None:
    """The library of a C file that includes none of our own; None where no C compiler builds it."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return None
    recipe = [source.read_text(), *_FLAGS, compiler, _processor()]
    name = hashlib.sha256("\0".join(recipe).encode()).hexdigest()[:16]
    library = cache_dir / f"{source.stem}-{name}.so"
    if not library.exists() and not _build(compiler, source, library):
        return None
    return ctypes.CDLL(str(library))


def _build(compiler: str, source: Path, library: Path) -> bool:
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        built = Path(folder) / library.name
        command = [compiler, *_FLAGS, str(source), "-o", str(built), "-lm"]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            return False
        built.replace(library)  # two processes may build at once; either file will do
    return True


def _processor() -> str:
    """What `-march=native` depends on, so that a shared folder never serves another machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
