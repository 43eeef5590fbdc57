"""`gristmill run` from file to file: result files, exit codes, messages, progress."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from gristmill_process import Gristmill, chat_line, read_lines

PARAMETERS: list[dict[str, object]] = [
    {"temperature": 0},
    {"temperature": 0.7, "seed": 3},
    {"temperature": 1.0, "top_p": 0.9, "top_k": 20},
    {"temperature": 0.8, "min_p": 0.05, "logit_bias": {"40": -100}},
    {"temperature": 0, "stop": ["e", "zz"]},
    {"temperature": 0, "ignore_eos": True},
]


def good_lines(count: int) -> list[dict[str, object]]:
    return [
        chat_line(f"row-{i}", f"Say {i} ü 🙂", max_tokens=4 + i, **PARAMETERS[i % len(PARAMETERS)])
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def completed(
    tmp_path_factory: pytest.TempPathFactory, tiny_model: Path
) -> tuple[Gristmill, subprocess.CompletedProcess[str]]:
    """One good run of twelve rows that several tests look at."""
    gristmill = Gristmill(tmp_path_factory.mktemp("completed"), tiny_model)
    gristmill.write(good_lines(12))
    return gristmill, gristmill.run_installed()


def test_a_good_file_ends_in_0_with_each_row_once_in_order(completed):
    gristmill, done = completed

    assert done.returncode == 0, done.stderr
    rows = read_lines(gristmill.output)
    assert [row["custom_id"] for row in rows] == [f"row-{i}" for i in range(12)]


def test_output_lines_have_the_shape_of_the_batch_api(completed):
    gristmill, _ = completed

    for row in read_lines(gristmill.output):
        assert set(row) == {"id", "custom_id", "response", "error"}
        assert row["error"] is None
        assert row["response"]["status_code"] == 200
        body = row["response"]["body"]
        assert (body["object"], body["model"]) == ("chat.completion", "tiny")
        (choice,) = body["choices"]
        assert choice["message"]["role"] == "assistant"
        assert choice["finish_reason"] in ("stop", "length")
        usage = body["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_the_summary_agrees_with_the_files(completed):
    gristmill, done = completed
    usages = [row["response"]["body"]["usage"] for row in read_lines(gristmill.output)]

    assert "12: 12 answered, 0 failed" in done.stdout
    assert f"{sum(u['prompt_tokens'] for u in usages):,} prompt" in done.stdout
    assert f"{sum(u['completion_tokens'] for u in usages):,} generated" in done.stdout
    assert "out.jsonl" in done.stdout


def test_progress_is_plain_lines_where_stderr_is_no_terminal(completed):
    _, done = completed

    assert "loading the model" in done.stderr
    assert "/12 rows" in done.stderr
    assert "\x1b" not in done.stderr + done.stdout
    assert "\r" not in done.stderr


def test_stderr_holds_our_lines_only(completed):
    _, done = completed
    ours = ("reading the input", "loading the model", "engine: ", "answering", "writing the")

    assert [line for line in done.stderr.splitlines() if not line.startswith(ours)] == []
    assert "KV cache of " in done.stderr  # the memory that it took is said


def test_the_work_folder_is_gone_when_all_is_done(completed):
    gristmill, _ = completed

    assert not (gristmill.folder / "out.jsonl.work").exists()
    assert not gristmill.errors.exists()


def test_quiet_keep_work_and_json(gristmill):
    gristmill.write(good_lines(2))

    done = gristmill.run("--quiet", "--json", "--keep-work", "--work-dir", "w")

    assert (done.returncode, done.stderr) == (0, "")
    assert (gristmill.folder / "w").is_dir()
    document = json.loads(done.stdout)
    assert (document["status"], document["total"], document["failed"]) == ("completed", 2, 0)


def test_refused_rows_get_an_error_line_and_the_run_ends_in_4(gristmill):
    gristmill.write(
        [
            chat_line("good", "Hello", max_tokens=4),
            chat_line("hot", "Hello", temperature=9),
            chat_line("long", "word " * 2000, max_tokens=4),
            chat_line("later", "Hello", modalities=["audio"]),
        ]
    )

    done = gristmill.run("--errors", "bad.jsonl")

    assert done.returncode == 4, done.stderr
    assert [row["custom_id"] for row in read_lines(gristmill.output)] == ["good"]
    errors = {row["custom_id"]: row for row in read_lines(gristmill.folder / "bad.jsonl")}
    assert set(errors) == {"hot", "long", "later"}
    for row in errors.values():
        assert row["response"]["status_code"] == 400
        assert set(row["response"]["body"]["error"]) >= {"message", "type", "param", "code"}
    assert errors["hot"]["response"]["body"]["error"]["param"] == "temperature"
    assert errors["later"]["response"]["body"]["error"]["param"] == "modalities"
    assert "bad.jsonl" in done.stdout


def test_an_invalid_file_ends_in_3_with_every_bad_line_and_no_result(gristmill):
    gristmill.write([chat_line("a", "x"), "{not json", chat_line("a", "y"), chat_line("b", "z")])

    done = gristmill.run()

    assert done.returncode == 3
    assert "line 2: invalid_json_line: " in done.stderr
    assert "line 3: duplicate_custom_id: " in done.stderr
    assert "line 4" not in done.stderr
    assert "Traceback" not in done.stderr
    assert not gristmill.output.exists()


def test_more_bad_lines_than_the_limit_are_counted(gristmill):
    gristmill.write(["nonsense"] * 7)

    done = gristmill.run(GRISTMILL_MAX_ERRORS_SHOWN="3")

    assert done.returncode == 3
    assert done.stderr.count("invalid_json_line") == 3
    assert "... and 4 more" in done.stderr


@pytest.mark.parametrize(
    "options", [("--model", "no-such-folder-or-name"), ("--max-num-seqs", "x")]
)
def test_a_wrong_call_ends_in_2_without_a_traceback(gristmill, options):
    gristmill.write(good_lines(1))

    done = gristmill.run(*options)

    assert done.returncode == 2
    assert options[1] in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_that_cannot_run_exactly_ends_in_1_with_the_reason(gristmill, tmp_path):
    shutil.copytree(gristmill.model, tmp_path / "bloom")
    sizes = {"n_layer": 2, "n_head": 4, "hidden_size": 64, "vocab_size": 400, "seq_length": 64}
    config = {"model_type": "bloom", "architectures": ["BloomForCausalLM"], **sizes}
    (tmp_path / "bloom" / "config.json").write_text(json.dumps(config))
    gristmill.write([chat_line("a", "x", max_tokens=2)])

    done = gristmill.run("--model", str(tmp_path / "bloom"))

    assert done.returncode == 1
    assert "BloomForCausalLM" in done.stderr
    assert "README.md#models" in done.stderr
    assert "Traceback" not in done.stderr


def test_debug_shows_the_traceback(gristmill):
    gristmill.write(good_lines(1))

    done = gristmill.run("--model", "no-such-folder-or-name", "--debug")

    assert done.returncode != 0
    assert "Traceback" in done.stderr
