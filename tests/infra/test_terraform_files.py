"""The form of what lies in infra/terraform, as far as it shows without a provider."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "services"))

from terraform import SOURCE, terraform_command

from gristmill.api.server import KEEP_ALIVE_S
from gristmill.metrics import METRICS
from gristmill.process import cloudwatch
from gristmill.settings import Settings

FILES = sorted(path for path in SOURCE.rglob("*.tf") if ".terraform" not in path.parts)


def test_the_files_are_formatted() -> None:
    done = subprocess.run(
        [terraform_command(), "fmt", "-check", "-recursive", "-diff", "-no-color", str(SOURCE)],
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_are_short_and_name_settings_that_there_are(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    links = {"GRISTMILL_QUEUE", "GRISTMILL_STORE", "GRISTMILL_LEDGER", "GRISTMILL_BROKER"}
    known = links | {f"GRISTMILL_{name.upper()}" for name in Settings.model_fields}

    assert len(text.splitlines()) <= 330
    assert set(re.findall(r"GRISTMILL_[A-Z_]+", text)) <= known


def test_the_load_balancer_closes_idle_connections_before_the_api_does() -> None:
    text = (SOURCE / "modules/front_door/main.tf").read_text("utf-8")
    (idle_s,) = map(int, re.findall(r"idle_timeout = (\d+)", text))

    assert idle_s < KEEP_ALIVE_S


def test_waking_ends_no_worker() -> None:
    text = (SOURCE / "modules/workers/scaling.tf").read_text("utf-8")

    assert re.search(r'wake = \{\n\s+adjustment = "ChangeInCapacity"', text)


def test_alarms_look_at_what_control_publishes() -> None:
    published = set(re.findall(r'"((?:Backlog|Workers)\w*)"', source_of(cloudwatch)))
    looked_at = set()
    for path in FILES:
        looked_at |= set(re.findall(r'"((?:Backlog|Workers)\w*)"', path.read_text("utf-8")))

    assert looked_at == published == {"BacklogTokens", "BacklogSeconds", "Workers"}
    named = set(re.findall(r'"(gristmill_\w+)"', source_of(cloudwatch)))
    assert named <= {metric.name for metric in METRICS}


def source_of(module: object) -> str:
    return Path(str(module.__file__)).read_text("utf-8")  # type: ignore[attr-defined]
