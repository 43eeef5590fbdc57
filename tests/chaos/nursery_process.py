"""The nursery of the arena: processes as lives.py has them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))
sys.path.insert(0, str(Path(__file__).parents[1] / "services"))
sys.path.insert(0, str(Path(__file__).parent))

from lives import live
from local_run import Desk, make_line
from nursery import serve
from pipeline import fast_folder

#: What the rehearsal does not need and some order may.
_MODULES = ("gristmill.cli.worker", "gristmill.queues.redis", "gristmill.queues.sqs", "boto3")


def rehearse() -> None:
    """One small run, after which everything is imported."""
    for name in (*_MODULES, "gristmill.stores.s3", "gristmill.process.worker"):
        importlib.import_module(name)
    with fast_folder() as folder:
        desk = Desk(folder)
        desk.write([make_line("a")])
        desk.run()


if __name__ == "__main__":
    rehearse()
    serve(live)
