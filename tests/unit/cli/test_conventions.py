"""What users of such tools expect: the list in tests/conventions.md is true, and what it lacked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from gristmill.cli import app

TESTS = Path(__file__).parents[2]
RESOURCES = {
    "files": {"create", "list", "get", "download", "delete"},
    "batches": {"create", "list", "get", "wait", "results", "cancel", "retry", "delete"},
    "models": {"list", "get"},
    "keys": {"create", "list", "rotate", "revoke"},
    "webhooks": {"create", "list", "get", "test", "replay", "delete"},
}
SHORT_CUTS = {
    *("run", "submit", "score", "status", "wait", "watch", "results", "cancel", "retry"),
    *("estimate", "replay", "login", "doctor"),
}


def test_each_convention_has_tests_that_exist() -> None:
    table = (TESTS / "conventions.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| ([^|]+?) \|.*\| ([^|]+) \|$", table, re.MULTILINE))
    del rows["topic"]
    source = "\n".join(path.read_text("utf-8") for path in TESTS.rglob("test_*.py"))
    existing = set(re.findall(r"def (test_\w+)", source))

    named = {topic: set(re.findall(r"`(test_\w+)`", row)) for topic, row in rows.items()}
    assert len(rows) == 19 and all(named.values())
    assert set.union(*named.values()) - existing == set()


def test_resources_and_short_cuts_have_their_verbs() -> None:
    root = typer.main.get_command(app)
    groups = {
        name: set(group.commands) for name, group in root.commands.items() if name in RESOURCES
    }  # type: ignore[attr-defined]

    assert {name: verbs - {"ls"} for name, verbs in groups.items()} == RESOURCES
    assert all("ls" in verbs for verbs in groups.values())
    assert set(root.commands) >= SHORT_CUTS  # type: ignore[attr-defined]


def test_what_follows_two_dashes_is_no_option(gristmill, pipeline, tmp_path):
    (tmp_path / "--debug").write_text("{}\n")

    gristmill("run", "-o", "out.jsonl", "--model", "m", "--", "--debug")

    (config,) = pipeline.configs
    assert Path(config.input_path).name == "--debug"
    refused = gristmill("run", "-o", "out.jsonl", "--model", "m", "--", "-x.jsonl")
    assert refused.exit_code == 2 and "no input file '-x.jsonl'" in refused.stderr


def test_a_shell_is_helped_to_complete() -> None:
    told = CliRunner().invoke(app, ["--help"]).stdout
    environ = {
        "_GRISTMILL_COMPLETE": "complete_bash",
        "COMP_WORDS": "gristmill webhooks re",
        "COMP_CWORD": "2",
    }

    done = subprocess.run(
        [Path(sys.executable).with_name("gristmill")],
        capture_output=True,
        text=True,
        env={**os.environ, **environ},
        check=False,
    )

    assert "--install-completion" in told and "--show-completion" in told
    assert done.stdout.split() == ["replay"]


@pytest.mark.parametrize(("level", "is_told"), [("debug", True), ("info", False), ("", False)])
def test_the_log_is_asked_for_by_a_variable_and_has_no_key(level: str, is_told: bool) -> None:
    program = (
        "from gristmill import Client\n"
        "try: Client(api_key='gm_secret', base_url='http://127.0.0.1:9', max_retries=0)"
        ".models.list()\n"
        "except Exception: pass"
    )

    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "GRISTMILL_LOG": level},
        check=True,
    )

    assert ("call method=GET url=http://127.0.0.1:9/v1/models try=1" in done.stderr) is is_told
    assert "gm_secret" not in done.stderr + done.stdout
