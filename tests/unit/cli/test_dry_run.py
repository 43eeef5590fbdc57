"""The report of `--dry-run`, from what `requests.check` finds."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gristmill import local_model
from gristmill.cli.dry_run import report_text
from gristmill.cli.throughput import ThroughputLog
from gristmill.errors import BatchInvalid, LineError
from gristmill.requests import check as check_module
from gristmill.requests.check import CheckReport, RefusedGroup

RUN = ("run", "in.jsonl", "-o", "out.jsonl", "--model", "m", "--dry-run")
TOO_HOT = RefusedGroup("invalid_value", "temperature", "`temperature` must be at most 2.", 7, 1200)
REPORT = CheckReport(
    input_bytes=2,
    num_rows=5000,
    num_refused=1200,
    num_merged=1,
    prompt_tokens=90_000,
    max_output_tokens=60_000,
    longest_prompt=300,
    refused=(TOO_HOT,),
)


@pytest.fixture
def checked(monkeypatch, pipeline):
    """What the check finds; a test may set `report` or `error`."""
    outcome = SimpleNamespace(report=REPORT, error=None, model=None)

    def find_catalogue(names, adapters, **options):
        outcome.model = (*names, options["served_names"])
        return SimpleNamespace(asked_for=lambda name: outcome.model)

    def check(_source, *, on_progress, **_):
        on_progress(outcome.report)
        if outcome.error is not None:
            raise outcome.error
        return outcome.report

    monkeypatch.setattr(local_model, "find_catalogue", find_catalogue)
    monkeypatch.setattr(check_module, "check", check)
    return outcome


def test_the_report_says_which_rows_have_a_form_and_in_which_lines_one_does_not_compile():
    bad = RefusedGroup("invalid_grammar", "guided_json", "`guided_json`: no.", 3, 21, (3, 5))
    report = replace(REPORT, num_with_grammar=7, num_with_tools=2, refused=(bad,))

    lines = report_text(report, tokens_per_s=None).splitlines()

    assert "forms      7 rows with a grammar, 2 with tools" in lines
    assert lines[-1] == (
        "refused    21 rows: invalid_grammar guided_json, in lines 3, 5, \u2026: `guided_json`: no."
    )


def test_the_report_has_rows_tokens_and_each_problem():
    assert report_text(REPORT, tokens_per_s=50.0).splitlines() == [
        "rows       5,000: 3,800 would run, 1,200 would be refused",
        "merged     1 row would share the work of an identical one",
        "tokens     90,000 prompt (the longest 300), at most 60,000 to generate",
        "time       at most about 20 min, at the 50.0 generated tokens/s of the last run "
        "of this model on this machine",
        "refused    1,200 rows: invalid_value temperature, first in line 7: "
        "`temperature` must be at most 2.",
    ]


def test_a_file_that_generates_nothing_has_no_estimate():
    report = replace(REPORT, max_output_tokens=0)

    assert "no estimate: nothing is generated" in report_text(report, tokens_per_s=50.0)


def test_refused_rows_end_in_4_and_nothing_is_run(gristmill, pipeline, checked):
    result = gristmill(*RUN, "--served-model-name", "s")

    assert result.exit_code == 4, result.stderr
    assert "1,200 would be refused" in result.stdout
    assert checked.model == ("m", ("s",))
    assert not pipeline.configs


def test_a_good_file_ends_in_0(gristmill, checked):
    checked.report = replace(REPORT, num_refused=0, refused=())

    result = gristmill(*RUN)

    assert result.exit_code == 0
    assert "no estimate" in result.stdout
    assert "reading the input: 66 %" in result.stderr  # 2 of the 3 bytes in in.jsonl


def test_the_speed_of_an_earlier_run_gives_the_estimate(gristmill, checked, tmp_path):
    log = ThroughputLog(tmp_path / "cache")
    log.record("m", generated_tokens=5000, tokens_per_s=1000.0)

    assert "at most about 1 min," in gristmill(*RUN).stdout
    assert json.loads(gristmill(*RUN, "--json").stdout)["estimated_s"] == 60.0


def test_a_real_run_leaves_its_speed_for_the_next_dry_run(gristmill, pipeline, checked):
    pipeline.ends_with(generated_tokens=5000, tokens_per_s=100.0)
    gristmill(*RUN[:-1])

    assert "10 min," in gristmill(*RUN).stdout


def test_an_invalid_file_ends_in_3_with_its_lines(gristmill, checked):
    checked.error = BatchInvalid([LineError("empty_batch", "The file has no requests.")], 1)

    result = gristmill(*RUN)
    document = json.loads(gristmill(*RUN, "--json").stdout)

    assert result.exit_code == 3
    assert "empty_batch: The file has no requests." in result.stderr
    assert (document["status"], document["num_errors"]) == ("failed", 1)
