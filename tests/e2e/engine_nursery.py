"""The nursery of commands of `gristmill` exactly as the installed one runs them, Engine and all."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "services"))

from nursery import serve

from gristmill import crash_points
from gristmill.cli import app
from gristmill.cli.progress import keep_stderr_ours

#: What `run`, `replay` and `score` import sooner or later. Nothing is computed before the fork:
#: threads would not survive it.
_MODULES = (
    *("torch", "transformers", "tokenizers", "safetensors.torch", "llguidance", "jsonschema_rs"),
    *("transformers.models.llama.modeling_llama", "transformers.models.bert.modeling_bert"),
    *("gristmill_worker.worker", "gristmill.local", "gristmill.local.pipeline"),
    *("gristmill.local.replay", "gristmill.score", "gristmill.client"),
    *("alembic.command", "sqlalchemy.dialects.sqlite"),
)


def live(order: dict[str, Any]) -> int:
    """One command; its exit code."""
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environ"])
    crash_points.arm(os.environ)
    app(order["argv"], prog_name="gristmill")
    return 0


if __name__ == "__main__":
    keep_stderr_ours()
    for name in _MODULES:
        importlib.import_module(name)
    serve(live)
