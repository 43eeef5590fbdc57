"""`local.run` from file to file: complete, interrupted, refused, and what it leaves on the disk."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from local_run import Desk, comparable, make_line, make_model_folder
from pipeline import fast_folder

from gristmill.errors import CorruptDocument, StoreError, UsageError, WorkFolderMismatch
from gristmill.local import Progress
from gristmill.local.work_folder import WorkFolder


@pytest.fixture
def desk() -> Iterator[Desk]:
    with fast_folder() as folder:
        yield Desk(folder)


def custom_ids(lines: list[dict[str, Any]]) -> list[str]:
    return [line["custom_id"] for line in lines]


def test_a_run_goes_from_file_to_file(desk: Desk) -> None:
    desk.write([make_line(f"r{idx}") for idx in range(20)] + [make_line("bad", best_of=3)])

    summary = desk.run()

    assert summary.status == "completed"
    assert (summary.total, summary.completed, summary.failed) == (21, 20, 1)
    assert custom_ids(desk.answers) == [f"r{idx}" for idx in range(20)]
    assert custom_ids(desk.failures) == ["bad"]
    assert (summary.output_path, summary.errors_path) == (desk.output, desk.errors)
    usage = [line["response"]["body"]["usage"] for line in desk.answers]
    assert summary.usage.completion_tokens == sum(u["completion_tokens"] for u in usage)
    assert summary.generated_tokens == summary.usage.completion_tokens
    assert summary.rows_resumed == summary.tokens_resumed == 0
    assert summary.ttft_p50_s is not None and summary.itl_p95_s is not None
    assert not desk.work.exists()
    phases = list(dict.fromkeys(progress.phase for progress in desk.progress))
    assert phases == ["reading", "loading", "running", "writing"]


def test_a_stale_errors_file_is_removed_and_none_written_when_all_is_well_b42(
    desk: Desk,
) -> None:
    desk.write([make_line("a")])
    desk.errors.write_text("of an earlier run")

    summary = desk.run()

    assert summary.errors_path is None
    assert not desk.errors.exists()


def test_a_run_whose_rows_all_fail_completes_with_an_empty_output_b42(desk: Desk) -> None:
    desk.write([make_line(f"r{idx}", best_of=3) for idx in range(3)])
    desk.output.write_text("of an earlier run")

    summary = desk.run()

    assert (summary.status, summary.completed, summary.failed) == ("completed", 0, 3)
    assert desk.answers == []
    assert custom_ids(desk.failures) == ["r0", "r1", "r2"]


def test_an_impossible_row_costs_itself_alone_b71(desk: Desk) -> None:
    bodies: dict[int, dict[str, Any]] = {
        37: {"prompt": ""},
        61: {"prompt": " the" * 9000},
        83: {"prompt": [5, 999_999_999, 1]},
        90: {"prompt": "\x00", "max_tokens": 2},
    }
    desk.write([make_line(f"r{idx}", **bodies.get(idx, {})) for idx in range(100)])

    summary = desk.run()

    assert (summary.completed, summary.failed) == (97, 3)
    assert sorted(custom_ids(desk.failures)) == ["r37", "r61", "r83"]
    messages = {line["response"]["body"]["error"]["message"] for line in desk.failures}
    assert len(messages) == 3
    assert desk.run().status == "completed", "the same process serves the next batch"


def test_a_file_that_fails_validation_leaves_nothing_behind(desk: Desk) -> None:
    desk.write([make_line("a"), "{not json", make_line("a")])
    desk.output.write_text("of an earlier run")

    summary = desk.run()

    assert summary.status == "failed"
    assert [error.line for error in summary.errors] == [2, 3]
    assert summary.num_errors == 2
    assert summary.output_path is None
    assert desk.output.read_text() == "of an earlier run"
    assert not desk.work.exists()


@pytest.mark.parametrize("phase", ["reading", "loading", "running", "writing"])
def test_a_run_that_is_stopped_in_any_phase_goes_on_where_it_was_b70(
    desk: Desk, phase: str
) -> None:
    lines = [make_line(f"r{idx}") for idx in range(30)] + [make_line("bad", best_of=3)]
    desk.write(lines)
    expected_desk = Desk(desk.folder / "other")
    expected_desk.write(lines)
    expected_desk.run()
    decoded: Counter[Any] = Counter()
    desk.on_decode = lambda prompt, position: decoded.update([(prompt, position)])
    seen = []

    def stop_in_the_phase() -> bool:
        seen.append(desk.progress[-1].phase if desk.progress else "")
        return (seen[-1] == phase and seen.count(phase) >= 2) or phase == "loading" == seen[-1]

    first = desk.run(should_stop=stop_in_the_phase)
    num_before = decoded.total()
    second = desk.run()

    assert first.status in ("interrupted", "completed")
    assert second.status == "completed"
    assert set(decoded.values()) == {1} or first.status == "completed"
    assert [comparable(x) for x in desk.answers] == [comparable(x) for x in expected_desk.answers]
    assert desk.failures == expected_desk.failures
    if first.status == "interrupted":
        assert second.rows_resumed == first.completed + first.failed
        assert second.tokens_resumed == num_before
        assert second.generated_tokens == decoded.total() - num_before


def test_another_run_in_the_work_folder_is_refused_with_what_differs(desk: Desk) -> None:
    desk.write([make_line("a")])
    desk.run(should_stop=lambda: True)
    assert desk.work.exists()

    desk.write([make_line("b")])
    with pytest.raises(WorkFolderMismatch, match="another content"):
        desk.run()
    desk.write([make_line("a")])

    weights = (desk.model / "model.safetensors").read_bytes()
    make_model_folder(desk.model, weights=b"other weights")
    with pytest.raises(WorkFolderMismatch, match="revision was"):
        desk.run()
    make_model_folder(desk.model, weights=weights)

    settings = desk.settings
    desk.settings = settings.model_copy(update={"max_model_len": 100})
    with pytest.raises(WorkFolderMismatch, match=r"max_model_len was 512, now it is 100.*delete"):
        desk.run()

    # What does not change answers may differ.
    desk.settings = settings.model_copy(update={"max_num_seqs": 2, "shard_max_jobs": 1})
    assert desk.run().status == "completed"


def test_a_second_process_is_refused_while_one_runs(desk: Desk) -> None:
    desk.write([make_line("a")])

    with WorkFolder(desk.work), pytest.raises(UsageError, match="Another process"):
        desk.run()

    assert desk.run().status == "completed"


def test_only_what_is_ours_is_removed(desk: Desk) -> None:
    desk.write([make_line("a")])
    mine = desk.work / "mine.txt"
    desk.work.mkdir()
    mine.write_text("keep me")

    desk.run()

    assert [path.name for path in desk.work.iterdir()] == ["mine.txt"]
    assert mine.read_text() == "keep me"


def test_a_folder_with_a_store_of_somebody_else_is_refused(desk: Desk) -> None:
    desk.write([make_line("a")])
    theirs = desk.work / "store" / "t" / "stock.csv"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("42")

    with pytest.raises(UsageError, match="not a store of Gristmill"):
        desk.run()

    assert theirs.read_text() == "42"


def test_a_completed_run_is_published_again_without_the_model(desk: Desk) -> None:
    desk.write([make_line("a"), make_line("bad", best_of=3)])
    desk.keep_work = True
    desk.run()
    published = desk.output.read_bytes(), desk.errors.read_bytes()
    desk.output.unlink()
    desk.errors.unlink()

    def refuse(prompt: object, position: object) -> None:
        raise AssertionError("nothing is left to decode")

    desk.on_decode, desk.keep_work = refuse, False
    summary = desk.run()

    assert (desk.output.read_bytes(), desk.errors.read_bytes()) == published
    assert summary.rows_resumed == 2
    assert "loading" not in {p.phase for p in desk.progress[-2:]}
    assert not desk.work.exists()


def test_a_death_while_the_work_folder_was_removed_does_not_hurt_the_next_run(
    desk: Desk,
) -> None:
    desk.write([make_line("a")])
    desk.keep_work = True
    desk.run()
    for path in desk.work.glob("ledger.sqlite*"):
        path.unlink()
    desk.keep_work = False

    assert desk.run().status == "completed"
    assert not desk.work.exists()


def test_what_the_engine_raises_ends_the_run_and_the_next_goes_on(desk: Desk) -> None:
    desk.write([make_line(f"r{idx}") for idx in range(12)])
    num_tokens = 0

    def break_once(prompt: object, position: object) -> None:
        nonlocal num_tokens
        num_tokens += 1
        if num_tokens == 60:
            raise RuntimeError("the kernel broke")

    desk.on_decode = break_once
    with pytest.raises(RuntimeError, match="the kernel broke"):
        desk.run()
    assert not desk.output.exists()

    assert desk.run().status == "completed"
    assert len(desk.answers) == 12


def test_a_disk_that_is_full_is_a_readable_error_and_the_next_start_goes_on(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.write([make_line(f"r{idx}") for idx in range(12)])
    num_syncs = 0

    def full(descriptor: int) -> None:
        nonlocal num_syncs
        num_syncs += 1
        if num_syncs > 20:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match="is full"):
            desk.run()

    assert desk.run().status == "completed"
    assert len(desk.answers) == 12


def test_an_output_that_cannot_be_written_is_kept_in_the_work_folder(desk: Desk) -> None:
    desk.write([make_line("a")])
    desk.output.mkdir()
    with pytest.raises(StoreError, match="answers are kept"):
        desk.run()
    desk.output.rmdir()

    assert desk.run().rows_resumed == 1
    assert custom_ids(desk.answers) == ["a"]


def test_an_input_that_changes_while_it_is_read_is_noticed(desk: Desk) -> None:
    desk.write([make_line("a")])

    def change(progress: Any) -> None:
        if progress.phase == "reading" and progress.bytes_read:
            with desk.input.open("a") as file:
                file.write(make_line("b") + "\n")

    with pytest.raises(UsageError, match="was changed while it was read"):
        desk.run(on_progress=change)


def test_an_input_that_is_not_there_leaves_no_work_folder(desk: Desk) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        desk.run()

    assert not desk.work.exists()


def test_a_damaged_shard_ends_the_run_and_says_what_to_do(desk: Desk) -> None:
    desk.write([make_line(f"r{idx}") for idx in range(12)])

    def damage(progress: Progress) -> None:
        if progress.phase == "loading":
            shard = sorted((desk.work / "store").rglob("shards/*"))[1]
            shard.write_bytes(shard.read_bytes()[:-5])

    with pytest.raises(CorruptDocument, match=r"shards/00000001 cannot be read.*start the batch"):
        desk.run(on_progress=damage)
