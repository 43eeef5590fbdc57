"""A service whose ledger was lost, or restored from an old copy, goes on after one command."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import openai
import pytest
from house import House, as_file, make_lines
from local_run import make_line
from pipeline import fast_folder
from typer.testing import CliRunner

from gristmill.cli import app


def replace_ledger(data: Path, backup: Path | None) -> None:
    for path in data.glob("service.sqlite*"):
        path.unlink()
    if backup is not None:
        shutil.copy(backup, data / "service.sqlite")


@pytest.mark.parametrize("kind", ["lost", "old"])
def test_the_truth_is_found_again_beside_a_newer_store(kind: str) -> None:
    lines = [*make_lines(9), make_line("bad", best_of=3)]
    with fast_folder() as folder:
        data, backup = folder / "data", folder / "backup.sqlite"
        with House.opened(folder) as house:
            before = house.wait(house.create(lines))
            with (
                closing(sqlite3.connect(data / "service.sqlite")) as source,
                closing(sqlite3.connect(backup)) as target,
            ):
                source.backup(target)
            after = house.wait(house.create(lines, metadata={"when": "after the copy"}))
            upload = house.upload(make_lines(2))
            house.pause_midway()
            running = house.create(make_lines(30))
            house.wait(running, lambda b: b.request_counts and b.request_counts.completed)
            files = {
                file_id: house.client().files.content(file_id).content
                for batch in (before, after)
                for file_id in (batch.input_file_id, batch.output_file_id, batch.error_file_id)
                if file_id is not None
            }

        replace_ledger(data, backup if kind == "old" else None)
        done = CliRunner().invoke(app, ["ledger", "rebuild", "--data-dir", str(data)])
        with House.opened(folder) as house:
            client = house.client()
            found = {batch.id: batch for batch in client.batches.list()}
            ended = house.wait(found[running.id])
            contents = {file_id: client.files.content(file_id).content for file_id in files}
            again = house.wait(
                client.batches.create(
                    input_file_id=upload.id, endpoint="/v1/completions", completion_window="24h"
                )
            )

    assert done.exit_code == 0, done.output
    assert contents == files and len(files) == 6
    assert set(found) == {before.id, after.id, running.id}
    assert found[before.id] == before and found[after.id] == after
    assert ended.status == "completed" and again.status == "completed"
    assert ended.request_counts is not None
    assert ended.request_counts.to_dict() == {"total": 30, "completed": 30, "failed": 0}


def test_the_rows_of_a_rebuilt_batch_come_from_its_files() -> None:
    with fast_folder() as folder:
        with House.opened(folder) as house:
            batch = house.wait(house.create(make_lines(3)))
            gone = house.upload(make_lines(2))
            assert house.client().files.delete(gone.id).deleted
        replace_ledger(folder / "data", None)
        done = CliRunner().invoke(app, ["ledger", "rebuild", "--data-dir", str(folder / "data")])
        with House.opened(folder) as house, house.http() as http:
            answer = http.get(f"/v1/batches/{batch.id}/results")
            lines = answer.text.splitlines()
            with pytest.raises(openai.NotFoundError):
                house.client().files.retrieve(gone.id)
            restored = house.client().files.retrieve(batch.input_file_id)

    assert done.exit_code == 0 and "1 had ended" in done.output, done.output
    assert answer.status_code == 200 and len(lines) == 3
    assert restored.bytes == len(as_file(make_lines(3)))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Say which"),
        (("--data-dir", "nowhere-at-all"), "There is no folder"),
        (("--ledger", "x.sqlite"), "Say which"),
    ],
)
def test_a_ledger_of_nowhere_is_refused(arguments: tuple[str, ...], words: str) -> None:
    done = CliRunner().invoke(app, ["ledger", "rebuild", *arguments])

    assert done.exit_code == 2 and words in done.output
