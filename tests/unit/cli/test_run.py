"""`gristmill run` before and after the pipeline: arguments, messages, exit codes, the summary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gristmill.errors import LineError, ModelNotFound, ModelUnsupported, WorkFolderMismatch
from gristmill.types import Usage

RUN = ("run", "in.jsonl", "-o", "out.jsonl", "--model", "m")


def test_paths_and_names_have_the_documented_defaults(gristmill, pipeline):
    result = gristmill(*RUN)

    (config,) = pipeline.configs
    assert result.exit_code == 0, result.output
    assert config.errors_path == Path("out.errors.jsonl")
    assert config.work_dir == Path("out.jsonl.work")
    assert config.served_names == ()
    assert not config.keep_work


def test_options_reach_the_pipeline(gristmill, pipeline):
    options = ["--errors", "bad.jsonl", "--work-dir", "w", "--keep-work", "--revision", "r1"]
    options += ["--served-model-name", "a", "--served-model-name", "b"]
    options += ["--max-num-seqs", "7", "--max-model-len", "99", "--flush-interval", "500ms"]

    result = gristmill(*RUN, *options)

    (config,) = pipeline.configs
    assert result.exit_code == 0, result.output
    assert (config.errors_path, config.work_dir) == (Path("bad.jsonl"), Path("w"))
    assert (config.keep_work, config.revision) == (True, "r1")
    assert config.served_names == ("a", "b")
    assert config.settings.max_num_seqs == 7
    assert config.settings.max_model_len == 99
    assert config.settings.flush_interval_s == config.settings.quiet_flush_interval_s == 0.5


def test_an_option_wins_over_the_environment(gristmill, pipeline, monkeypatch):
    monkeypatch.setenv("GRISTMILL_MAX_NUM_SEQS", "5")
    monkeypatch.setenv("GRISTMILL_BLOCK_SIZE", "32")

    gristmill(*RUN, "--max-num-seqs", "7")

    (config,) = pipeline.configs
    assert (config.settings.max_num_seqs, config.settings.block_size) == (7, 32)


def test_a_bad_setting_is_named_with_its_value(gristmill, pipeline, monkeypatch):
    monkeypatch.setenv("GRISTMILL_LEASE_S", "soon")

    result = gristmill(*RUN)

    assert result.exit_code == 2
    assert "GRISTMILL_LEASE_S is set to 'soon'" in result.stderr
    assert not pipeline.configs


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "gone.jsonl", "-o", "o", "--model", "m"), "no input file 'gone.jsonl'"),
        (("run", "-", "-o", "o", "--model", "m"), "not a regular file"),
        (("run", ".", "-o", "o", "--model", "m"), "not a regular file"),
        (("run", "in.jsonl", "-o", "no/o", "--model", "m"), "no folder 'no'"),
        (("run", "in.jsonl", "-o", "-", "--model", "m"), "not a regular file"),
        (("run", "in.jsonl", "-o", "in.jsonl", "--model", "m"), "three different files"),
        ((*RUN, "--errors", "out.jsonl"), "three different files"),
        ((*RUN, "--flush-interval", "5"), "'5' is not a duration"),
        ((*RUN, "--max-num-seqs", "0"), "'--max-num-seqs'"),
        ((*RUN, "--what"), "No such option"),
        (("run", "in.jsonl", "--model", "m"), "Missing option"),
    ],
)
def test_a_wrong_call_ends_in_2_and_names_the_way_out(gristmill, pipeline, arguments, words):
    result = gristmill(*arguments)

    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stdout == ""
    assert not pipeline.configs


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (ModelNotFound("There is no model 'm'. Name a folder."), 2),
        (WorkFolderMismatch("The work folder is of another input. Name another."), 2),
        (ModelUnsupported("This model masks by hand. See README#models."), 1),
    ],
)
def test_an_expected_error_is_its_message_alone(gristmill, pipeline, error, exit_code):
    pipeline.error = error

    result = gristmill(*RUN)

    assert result.exit_code == exit_code
    assert result.stderr == f"Error: {error}\n"


def test_a_fault_of_ours_says_so_without_a_traceback(gristmill, pipeline):
    pipeline.error = RuntimeError("lost my way")

    result = gristmill(*RUN)

    assert result.exit_code == 1
    assert "RuntimeError: lost my way" in result.stderr
    assert "--debug" in result.stderr
    assert "Traceback" not in result.stderr


def test_debug_lets_the_exception_through(gristmill, pipeline):
    pipeline.error = RuntimeError("lost my way")

    assert gristmill(*RUN, "--debug").exception is pipeline.error


def test_a_full_disk_is_named(gristmill, pipeline):
    pipeline.error = OSError(28, "No space left on device", "out.jsonl.work/x")

    result = gristmill(*RUN)

    assert result.exit_code == 1
    assert result.stderr == "Error: No space left on device: out.jsonl.work/x\n"


def test_failed_validation_names_every_line_and_ends_in_3(gristmill, pipeline):
    errors = (
        LineError("duplicate_custom_id", "The custom_id 'a' was used in line 1.", line=3),
        LineError("invalid_json_line", "This is no JSON.", line=7),
        LineError("empty_batch", "The file has no lines."),
    )
    pipeline.ends_with(status="failed", errors=errors, num_errors=1203, output_path=None)

    result = gristmill(*RUN)

    assert result.exit_code == 3
    assert "  line 3: duplicate_custom_id: The custom_id 'a' was used in line 1." in result.stderr
    assert "  line 7: invalid_json_line: This is no JSON." in result.stderr
    assert "  empty_batch: The file has no lines." in result.stderr
    assert "  ... and 1,200 more" in result.stderr
    assert result.stdout == ""


def test_failed_rows_end_in_4(gristmill, pipeline):
    pipeline.ends_with(completed=2, failed=1, errors_path=Path("out.errors.jsonl"))

    result = gristmill(*RUN)

    assert result.exit_code == 4
    assert "3: 2 answered, 1 failed" in result.stdout
    assert "out.errors.jsonl" in result.stdout


def test_an_interrupted_run_says_how_to_go_on_and_ends_in_130(gristmill, pipeline):
    pipeline.ends_with(status="interrupted", completed=1, output_path=None)

    result = gristmill(*RUN)

    assert result.exit_code == 130
    assert "out.jsonl.work" in result.stderr
    assert "run the same command again" in result.stderr
    assert "2 still to do" in result.stdout


def test_the_summary_has_the_figures(gristmill, pipeline):
    pipeline.ends_with(rows_resumed=1, tokens_resumed=30)

    lines = gristmill(*RUN).stdout.splitlines()

    assert lines == [
        "rows       3: 3 answered, 0 failed",
        "tokens     1,200 prompt, 90 generated; 25.0% of the prompt tokens came from "
        "the prefix cache",
        "this run   60 tokens in 4.5 s, 13.3 tokens/s",
        "resumed    1 row and 30 tokens were already done before this start",
        "TTFT       p50 250 ms, p95 1.5 s",
        "ITL        p50 50 ms, p95 125 ms",
        "answers    out.jsonl",
    ]


def test_where_nothing_is_generated_the_summary_counts_rows(gristmill, pipeline):
    pipeline.ends_with(usage=Usage(prompt_tokens=1200), generated_tokens=0, tokens_per_s=0.0)

    assert "this run   3 rows in 4.5 s, 0.7 rows/s" in gristmill(*RUN).stdout


def test_json_prints_one_document(gristmill, pipeline):
    document = json.loads(gristmill(*RUN, "--json").stdout)

    assert document["status"] == "completed"
    assert document["output_path"] == "out.jsonl"
    assert document["errors_path"] is None
    assert document["usage"] == {
        "prompt_tokens": 1200,
        "completion_tokens": 90,
        "cached_tokens": 300,
    }


def test_json_of_a_failed_batch_has_the_lines(gristmill, pipeline):
    error = LineError("invalid_json_line", "This is no JSON.", line=7)
    pipeline.ends_with(status="failed", errors=(error,), num_errors=1)

    result = gristmill(*RUN, "--json")

    assert result.exit_code == 3
    (line,) = json.loads(result.stdout)["errors"]
    assert (line["line"], line["code"]) == (7, "invalid_json_line")


def test_quiet_prints_nothing_when_all_is_well(gristmill, pipeline):
    assert gristmill(*RUN, "--quiet").output == ""


def test_version_is_the_installed_one(gristmill):
    result = gristmill("--version")

    assert result.exit_code == 0
    assert result.stdout.startswith("gristmill 0.")
