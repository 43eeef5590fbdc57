"""Runs moto's server with a clock that can be put forward: `aws_process.py PORT FILE`.

FILE holds the seconds by which the clock of SQS is ahead, and is read again at each look.
"""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from pathlib import Path

import moto.core.utils
import moto.server


def main() -> None:
    port, clock = sys.argv[1], Path(sys.argv[2])
    true_time = moto.core.utils.utcnow

    def utcnow() -> datetime:
        return true_time() + timedelta(seconds=float(clock.read_text() or 0))

    moto.core.utils.utcnow = utcnow
    moto.server.main(["-H", "127.0.0.1", "-p", port])


if __name__ == "__main__":
    main()
