"""Several batches as one: state, waiting, files with columns, cancelling, running again."""

from __future__ import annotations

import asyncio
import json
import sys

import pandas as pd
import pytest
from client_mill import Mill, error_line, result_line
from client_stage import batch, refuses, says

from gristmill.client import WaitTimeout
from gristmill.client.objects import Batch
from gristmill.client.progress import Pace, describe
from gristmill.client.state import state_of, wait
from gristmill.data import read_rows
from gristmill.errors import DataInvalid, UsageError


@pytest.fixture
def mill(stage) -> Mill:
    mill = Mill()
    stage.answers = [mill.answer]
    mill.add(
        "b1",
        input=[{"custom_id": "row-1"}, {"custom_id": "row-2"}],
        output=[result_line("row-2")],
        error=[error_line("row-1")],
    )
    mill.add("b2", output=[result_line("row-3", "no")])
    return mill


def state(*parts):
    return state_of(tuple(Batch.model_validate(part) for part in parts))


def counted(batch_id, status, total, completed, failed):
    counts = {"total": total, "completed": completed, "failed": failed}
    usage = {"input_tokens": 10 * completed, "output_tokens": completed}
    return batch(batch_id, status, request_counts=counts, usage=usage)


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        (("completed", "completed"), "completed"),
        (("completed", "failed"), "failed"),
        (("cancelled", "expired"), "expired"),
        (("completed", "in_progress"), "in_progress"),
        (("validating", "in_progress"), "validating"),
        (("cancelling", "completed"), "cancelling"),
        (("failed", "finalizing"), "finalizing"),
        (("something_new",), "something_new"),
    ],
)
def test_the_whole_is_called_after_its_worst_or_latest_part(parts, whole):
    found = state(*(batch(f"b{i}", status) for i, status in enumerate(parts)))

    assert found.status == whole


def test_counts_of_parts_add_up_and_are_told_in_one_line():
    found = state(counted("b1", "completed", 10, 9, 1), counted("b2", "in_progress", 30, 10, 0))
    clock = iter([0.0, 10.0])
    pace = Pace(lambda: next(clock))
    pace.see(state(counted("b1", "in_progress", 40, 5, 0)))
    pace.see(found)

    assert (found.total, found.done, found.output_tokens, found.input_tokens) == (40, 20, 19, 190)
    assert describe(found, pace) == ("in_progress: 20/40 rows, 1 failed, 1.4 tokens/s, 13 s left")


def test_waiting_asks_less_and_less_often_and_not_for_parts_that_have_ended(stage):
    stage.answers = [
        says(batch("b1", "completed")),
        says(batch("b2", "in_progress")),
        says(batch("b2", "in_progress")),
        says(batch("b2", "completed")),
    ]

    ended = stage.client().handle("b1", "b2").wait(progress=False)

    assert ended.status == "completed" and stage.waits == [0.25, 0.375]


def test_waiting_ends_with_its_time_and_the_batch_goes_on(stage):
    stage.answers = [says(batch("b1", "in_progress"))]
    client = stage.client()
    now = 0.0

    def sleep(seconds):
        nonlocal now
        now += seconds

    client._driver._sleep = sleep
    steps = wait(
        client._batch_calls,
        ["b1"],
        timeout=3.0,
        poll_interval=None,
        on_state=lambda found: None,
        clock=lambda: now,
    )

    with pytest.raises(WaitTimeout, match="in_progress after 3 s"):
        client._driver.run(steps)
    assert now == 3.0


def test_progress_is_a_line_where_there_is_no_terminal(stage, capsys, monkeypatch):
    monkeypatch.delenv("GRISTMILL_NO_PROGRESS", raising=False)
    stage.answers = [
        says(counted("b1", "in_progress", 2, 1, 0)),
        says(counted("b1", "completed", 2, 2, 0)),
    ]

    stage.client().handle("b1").wait()

    assert capsys.readouterr().err.splitlines() == [
        "in_progress: 1/2 rows",
        "completed: 2/2 rows",
    ]


def test_progress_is_switched_off_by_argument_or_variable(stage, capsys, monkeypatch):
    stage.answers = [says(counted("b1", "completed", 2, 2, 0))]

    stage.client().handle("b1").wait(progress=False)
    monkeypatch.setenv("GRISTMILL_NO_PROGRESS", "1")
    stage.client().handle("b1").wait()

    assert capsys.readouterr().err == ""


def test_results_are_written_in_the_format_of_the_name(stage, mill, tmp_path):
    handle = stage.client().handle("b1", "b2")

    assert handle.download(tmp_path / "out.jsonl") == 3
    assert handle.download(tmp_path / "out.csv") == 3

    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["custom_id"] for line in lines] == ["row-1", "row-2", "row-3"]
    first, second, *_ = (tmp_path / "out.csv").read_text().splitlines()
    assert first.startswith("custom_id,answer,answer_json,finish_reason")
    assert second.startswith("row-1,") and "was bad" in second
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "out.jsonl"]


def test_parquet_has_typed_columns_and_receipts(stage, mill, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")

    assert stage.client().handle("b1", "b2").to_parquet(tmp_path / "out.parquet") == 3

    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column("answer").to_pylist() == [None, "yes", "no"]
    assert str(table.schema.field("prompt_tokens").type) == "int64"
    assert table.column("receipt").to_pylist()[1]["dtype"] == "float32"
    with pytest.raises(UsageError, match=r"end in \.parquet"):
        stage.client().handle("b1").to_parquet(tmp_path / "out.csv")


def test_results_stand_behind_the_rows_that_were_submitted(stage, mill, tmp_path):
    rows = [{"label": name, "key": f"row-{i}"} for i, name in enumerate("abc", 1)]

    handle = stage.client().handle("b1", "b2")
    handle.download(tmp_path / "place.jsonl", join=rows)
    handle.download(tmp_path / "column.jsonl", join=rows, id_column="key")

    lines = [json.loads(line) for line in (tmp_path / "place.jsonl").read_text().splitlines()]
    assert [(line["label"], line["answer"]) for line in lines] == [
        ("a", None),
        ("b", "yes"),
        ("c", "no"),
    ]
    assert (tmp_path / "place.jsonl").read_text() == (tmp_path / "column.jsonl").read_text()
    with pytest.raises(DataInvalid, match="'answer'"):
        handle.download(tmp_path / "x.jsonl", join=[{"answer": "x"}])


def test_a_download_goes_on_with_the_files_that_are_there(stage, mill, tmp_path):
    lost = mill.files.pop("file-b2-output")
    client = stage.client()
    with pytest.raises(Exception, match="said the test"):
        client.handle("b1", "b2").download(tmp_path / "out.jsonl")
    mill.files["file-b2-output"] = lost
    del mill.files["file-b1-output"]  # it was fetched before

    assert client.handle("b1", "b2").download(tmp_path / "out.jsonl") == 3


def test_a_folder_of_the_caller_is_neither_used_nor_removed(stage, mill, tmp_path):
    own = tmp_path / "out.jsonl.parts" / "notes.txt"
    own.parent.mkdir()
    own.write_text("mine")

    with pytest.raises(UsageError, match=r"out\.jsonl\.parts' is there and holds other things"):
        stage.client().handle("b1").download(tmp_path / "out.jsonl")

    assert own.read_text() == "mine" and stage.requests == []
    own.unlink()
    assert stage.client().handle("b1").download(tmp_path / "out.jsonl") > 0
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


@pytest.mark.parametrize(("name", "words"), [("no/out.jsonl", "no folder"), ("out.xyz", "out.xyz")])
def test_a_place_that_cannot_be_written_is_said_at_once(stage, mill, tmp_path, name, words):
    with pytest.raises(UsageError, match=words):
        stage.client().handle("b1").download(tmp_path / name)
    assert stage.requests == []


def test_a_frame_of_pandas_goes_in_and_comes_out(stage, mill):
    found = stage.client().handle("b1", "b2").to_pandas()

    assert isinstance(found, pd.DataFrame)
    assert list(found["answer"].astype(object).where(found["answer"].notna(), None)) == [
        None,
        "yes",
        "no",
    ]
    given = pd.DataFrame(
        {
            "text": pd.array(["a", None], dtype="string"),
            "stars": [5.0, None],
            "seen": [pd.Timestamp("2026-11-30"), pd.NaT],
        },
        index=[7, 7],
    )
    first, second = read_rows(given)
    assert (first["text"], first["stars"], first["seen"].year) == ("a", 5.0, 2026)
    assert second == {"text": None, "stars": None, "seen": None}


def test_without_pandas_the_way_out_is_said(stage, mill, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(UsageError, match="pip install pandas"):
        stage.client().handle("b1").to_pandas()


def test_cancelling_leaves_parts_alone_that_have_ended(stage):
    stage.answers = [
        refuses(400, "batch_not_cancellable"),
        says(batch("b2", "cancelling")),
        says(batch("b1", "completed")),
        says(batch("b2", "cancelling")),
    ]

    assert stage.client().handle("b1", "b2").cancel().status == "cancelling"


def test_what_failed_is_run_again_as_new_batches(stage):
    stage.answers = [refuses(400, "nothing_to_retry"), says(batch("b3", "validating"))]
    assert stage.client().handle("b1", "b2").retry_failed().ids == ("b3",)

    stage.answers = [refuses(400, "nothing_to_retry")]
    with pytest.raises(UsageError, match="Every row has an answer"):
        stage.client().handle("b1").retry_failed()


def test_the_async_handle_does_the_same(stage, mill, tmp_path):
    async def run():
        async with stage.async_client() as client:
            handle = client.handle("b1", "b2")
            ended = await handle.wait(progress=False)
            return ended.status, await handle.download(tmp_path / "out.jsonl")

    assert asyncio.run(run()) == ("completed", 3)


def test_a_handle_of_nothing_is_refused(stage):
    with pytest.raises(UsageError, match="one batch at least"):
        stage.client().handle()


def test_estimates_of_parts_add_up(stage):
    def estimate(number, **fields):
        return says(
            {
                "id": f"est_{number}",
                "status": "completed",
                "would_run": True,
                "request_counts": {"total": 2, "refused": 1},
                "input_tokens": 10,
                "output_tokens": {"expected": None, "max": 5},
                "cost": {"currency": "EUR", "min": 1.0, "expected": 2.0, "max": 3.0},
                "seconds": None,
                **fields,
            }
        )

    stage.answers = [
        says(batch("b1", input_file_id="f1", endpoint="/v1/completions")),
        says(batch("b2", input_file_id="f2", endpoint="/v1/completions")),
        says({"id": "est_1", "status": "queued"}),
        estimate(1),
        estimate(2, would_run=False),
    ]

    made = stage.client().handle("b1", "b2").estimate()

    assert (made.id, made.would_run, made.input_tokens) == ("est_1,est_2", False, 20)
    assert (made.request_counts.total, made.cost.max, made.cost.currency) == (4, 6.0, "EUR")
    assert (made.output_tokens.expected, made.output_tokens.max, made.seconds) == (None, 10, None)
