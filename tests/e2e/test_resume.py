"""Interrupted at any point and started again, a run ends with the files of an undisturbed one."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from gristmill_process import Gristmill, answers_of, chat_line

#: Long enough that with such a flush interval the first Segments hold a small part of the work.
LINES = [
    chat_line(
        f"row-{i}",
        f"Question {i}",
        max_tokens=60 + 7 * (i % 9),
        temperature=i % 2,
        seed=i,
        ignore_eos=True,
    )
    for i in range(40)
]
OPTIONS = ("--flush-interval", "10ms", "--max-num-seqs", "4")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> list[object]:
    gristmill = Gristmill(tmp_path_factory.mktemp("undisturbed"), tiny_model)
    gristmill.write(LINES)
    done = gristmill.run(*OPTIONS)
    assert done.returncode == 0, done.stderr
    return list(answers_of(gristmill.output))


def test_ctrl_c_keeps_the_work_and_the_same_command_goes_on(gristmill, undisturbed):
    gristmill.write(LINES)
    with gristmill.held(*OPTIONS) as process:
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "Press Ctrl-C again to end at once" in stderr
    assert "run the same command again" in stderr
    assert "Traceback" not in stderr
    assert not gristmill.output.exists()

    done = gristmill.run(*OPTIONS, "--json")

    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    generated = sum(line["body"]["max_tokens"] for line in LINES)
    assert summary["tokens_resumed"] > 0
    # After Ctrl-C nothing at all is decoded twice.
    assert summary["generated_tokens"] + summary["tokens_resumed"] == generated
    assert answers_of(gristmill.output) == undisturbed


def test_kill_9_twice_and_the_files_are_the_same(gristmill, undisturbed):
    gristmill.write(LINES)
    for _ in range(2):
        with gristmill.held(*OPTIONS, segments=3) as process:
            process.kill()

    done = gristmill.run(*OPTIONS, "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tokens_resumed"] > 0
    assert answers_of(gristmill.output) == undisturbed


def test_another_input_under_the_same_work_folder_is_refused(gristmill):
    gristmill.write(LINES)
    with gristmill.held(*OPTIONS) as process:
        process.kill()
    gristmill.write(LINES[:-1])

    done = gristmill.run(*OPTIONS)

    assert done.returncode == 2
    assert "out.jsonl.work" in done.stderr
    assert "Traceback" not in done.stderr
    assert not gristmill.output.exists()


def test_a_second_process_on_the_same_work_folder_is_refused(gristmill):
    gristmill.write(LINES)
    # Held in the middle: a quick machine would have finished before the second one looks.
    with gristmill.held(*OPTIONS) as process:
        done = gristmill.run(*OPTIONS)
        assert process.poll() is None

    assert done.returncode == 2
    assert "out.jsonl.work" in done.stderr
    assert "Traceback" not in done.stderr
