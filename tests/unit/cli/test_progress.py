"""Progress on stderr: plain lines for logs, a bar on a terminal, nothing when not wanted."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from gristmill.cli.progress import PlainProgress, describe, progress_view
from gristmill.local import Progress

RUNNING = Progress(
    phase="running",
    total=2000,
    completed=1200,
    failed=34,
    generated_tokens=5000,
    tokens_per_s=81.25,
    eta_s=95.0,
    bytes_read=10,
    bytes_total=10,
)


def test_the_line_has_rows_failures_speed_and_time_left():
    assert describe(RUNNING) == (
        "answering: 1,234/2,000 rows, 34 failed, 81.2 tokens/s, 1 min 35 s left"
    )


def test_what_is_not_known_is_left_out():
    unknown = replace(RUNNING, failed=0, tokens_per_s=0.0, eta_s=None)

    assert describe(unknown) == "answering: 1,200/2,000 rows"


def test_what_the_engine_has_is_said_once_as_soon_as_it_is_known():
    stream = io.StringIO()
    view = PlainProgress(stream, clock=lambda: 0.0)

    view.update(replace(RUNNING, phase="loading"))
    for _ in range(3):
        view.update(replace(RUNNING, equipment="64 rows at once; KV cache of 1,000 tokens"))

    lines = stream.getvalue().splitlines()
    assert lines[1] == "engine: 64 rows at once; KV cache of 1,000 tokens"
    assert sum(line.startswith("engine") for line in lines) == 1


@pytest.mark.parametrize(
    ("bytes_read", "bytes_total", "words"), [(1, 3, "33 %"), (0, 0, "100 %"), (3, 3, "100 %")]
)
def test_reading_is_shown_in_per_cent(bytes_read, bytes_total, words):
    reading = replace(RUNNING, phase="reading", bytes_read=bytes_read, bytes_total=bytes_total)

    assert describe(reading) == f"reading the input: {words}"


def test_plain_lines_come_every_ten_seconds_and_with_each_phase():
    stream, now = io.StringIO(), 100.0
    plain = PlainProgress(stream, clock=lambda: now)
    loading = replace(RUNNING, phase="loading")

    for now, progress in [  # noqa: B007  (the clock reads it)
        (100.0, loading),
        (101.0, loading),
        (102.0, RUNNING),
        (111.9, RUNNING),
        (112.0, RUNNING),
    ]:
        plain.update(progress)

    assert [line.split(":")[0] for line in stream.getvalue().splitlines()] == [
        "loading the model",
        "answering",
        "answering",
    ]


def test_a_pipe_gets_plain_lines():
    stream = io.StringIO()

    with progress_view(stream, wanted=True) as view:
        view.update(RUNNING)

    assert stream.getvalue() == describe(RUNNING) + "\n"


def test_a_terminal_gets_a_bar_with_the_same_words(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    stream = io.StringIO()
    stream.isatty = lambda: True

    with progress_view(stream, wanted=True) as view:
        view.update(RUNNING)

    assert "1,234/2,000 rows" in stream.getvalue()
    assert "━" in stream.getvalue()


def test_a_narrow_terminal_still_gets_one_line(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "50")
    stream = io.StringIO()
    stream.isatty = lambda: True

    with progress_view(stream, wanted=True) as view:
        view.update(RUNNING)

    assert "1,234/2,000 rows" in stream.getvalue()
    assert stream.getvalue().count("\n") == 1


def test_no_color_leaves_out_colour(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = io.StringIO()
    stream.isatty = lambda: True

    with progress_view(stream, wanted=True) as view:
        view.update(RUNNING)

    assert "\x1b[3" not in stream.getvalue()


def test_progress_can_be_switched_off():
    stream = io.StringIO()

    with progress_view(stream, wanted=False) as view:
        view.update(RUNNING)

    assert stream.getvalue() == ""


def test_the_switches_reach_the_run(gristmill, pipeline, monkeypatch):
    pipeline.progress = [RUNNING]
    call = ("run", "in.jsonl", "-o", "out.jsonl", "--model", "m")

    assert "answering" in gristmill(*call).stderr
    assert gristmill(*call, "--no-progress").stderr == ""
    monkeypatch.setenv("GRISTMILL_NO_PROGRESS", "1")
    assert gristmill(*call).stderr == ""
