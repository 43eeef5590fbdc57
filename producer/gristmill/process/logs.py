"""The log of a process that runs for long: one line each on stderr, key=value."""

from __future__ import annotations

import logging
import os
import sys
import time


def log_to_stderr(*, debug: bool) -> None:
    """Lines of ours from INFO on (DEBUG with `debug`), of libraries from WARNING on."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = logging.Formatter(
        f"%(asctime)s level=%(levelname)s pid={os.getpid()} %(name)s: %(message)s",
        "%Y-%m-%dT%H:%M:%SZ",
    )
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    for name in ("gristmill", "gristmill_worker"):
        logging.getLogger(name).setLevel(logging.DEBUG if debug else logging.INFO)
