"""Builds a C source of ours on this machine and loads it. What is in it, its own module knows.

The machine's own C compiler builds it at first use. The library is kept in a cache folder, under a
name made of its text, the flags and this processor.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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


class Kernel:
    """A C function whose only argument is a struct of pointers, then whole numbers, then floats.

    The struct is packed anew for each call, which is several times quicker than to fill a
    ctypes.Structure. `fields` describes it in the letters of Python's `struct` (P, q, f).
    """

    def __init__(self, library: ctypes.CDLL, name: str, fields: str) -> None:
        function = getattr(library, name)
        function.argtypes, function.restype = [ctypes.c_char_p], None
        self._function, self._layout = function, struct.Struct(fields)
        self.name = name
        kinds = re.findall(r"(\d*)([Pqf])", fields)
        self.num_pointers, self.num_integers = (
            sum(int(count or 1) for count, kind in kinds if kind == wanted) for wanted in "Pq"
        )
        address = ctypes.cast(function, ctypes.c_void_p).value
        assert address is not None, f"{name} has no address"
        self.address = address

    def __call__(self, *values: float) -> None:
        """Pointers are given as ints, 0 for NULL."""
        if _watcher is not None:
            _watcher(self, values)
        self._function(self._layout.pack(*values))

    def pack(self, values: Sequence[float]) -> bytes:
        """The struct that a call with these values gets."""
        return self._layout.pack(*values)


Watcher = Callable[[Kernel, tuple[float, ...]], None]
# torch sees no call of ours, so whoever has to know what a forward pass does asks here.
_watcher: Watcher | None = None


@contextmanager
def watched_kernels(watcher: Watcher) -> Iterator[None]:
    """Within the block, `watcher` is told of each call of a Kernel before it is made."""
    global _watcher
    assert _watcher is None, "kernels are watched already"
    _watcher = watcher
    try:
        yield
    finally:
        _watcher = None


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
