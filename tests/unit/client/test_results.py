"""Rows in the order of the input or as they come, each once, and read on from any cursor."""

from __future__ import annotations

import asyncio

import pytest
from client_mill import Mill, error_line, never_run_line, result_line

from gristmill.client import BatchFailed
from gristmill.client.results import NEVER_RUN_CODES
from gristmill.control.merge import NEVER_RUN_CODES as THEIRS
from gristmill.errors import UsageError


@pytest.fixture
def mill(stage) -> Mill:
    mill = Mill()
    stage.answers = [mill.answer]
    return mill


def ids(rows):
    return [row.custom_id for row in rows]


def with_cursors(*lines):
    return [{"cursor": f"{i}-1", **line} for i, line in enumerate(lines, 1)]


def mixed(mill, batch_id="b1", prefix=""):
    names = [f"{prefix}{name}" for name in "abcd"]
    mill.add(
        batch_id,
        input=[{"custom_id": name} for name in names],
        output=[result_line(names[1]), result_line(names[3])],
        error=[error_line(names[0]), never_run_line(names[2])],
    )
    mill.accepted[batch_id] = with_cursors(
        result_line(names[3]), error_line(names[0]), result_line(names[1])
    )
    return names


def test_ordered_rows_follow_the_input_through_both_files(stage, mill):
    names = mixed(mill)
    rows = list(stage.client().handle("b1").results())

    assert ids(rows) == names
    assert [row.ok for row in rows] == [False, True, False, True]
    assert (rows[1].text, rows[0].error) == ("yes", "bad: was bad")
    assert rows[2].error == "batch_expired: too late" and rows[2].body is None


def test_with_one_file_the_input_is_not_asked_for(stage, mill):
    mill.add("b1", output=[result_line("a"), result_line("b")])

    assert ids(stage.client().batches.results("b1")) == ["a", "b"]


def test_rows_of_several_batches_follow_each_other(stage, mill):
    names = mixed(mill) + mixed(mill, "b2", "x")

    rows = list(stage.client().handle("b1", "b2").results())

    assert ids(rows) == names
    for i, row in enumerate(rows):
        after = stage.client().handle("b1", "b2").results(after=row.cursor)
        assert ids(after) == names[i + 1 :]


def test_rows_as_they_come_are_the_accepted_ones_and_then_those_never_run(stage, mill):
    mixed(mill)
    handle = stage.client().handle("b1")

    rows = list(handle.results(ordered=False))

    assert ids(rows) == ["d", "a", "b", "c"]
    for i, row in enumerate(rows):
        again = handle.results(ordered=False, after=row.cursor)
        assert ids(again) == ids(rows)[i + 1 :]


def test_rows_of_several_batches_come_in_turn_and_go_on_from_any_cursor(stage, mill):
    mixed(mill)
    mixed(mill, "b2", "x")
    handle = stage.client().handle("b1", "b2")

    rows = list(handle.results(ordered=False))

    assert ids(rows) == ["d", "a", "b", "c", "xd", "xa", "xb", "xc"]
    for i, row in enumerate(rows):
        again = handle.results(ordered=False, after=row.cursor)
        assert sorted(ids(again)) == sorted(ids(rows)[i + 1 :])


def test_rows_that_come_later_are_waited_for(stage, mill):
    mill.add("b1", status="in_progress")
    mill.accepted["b1"] = with_cursors(result_line("a"))
    waits = []

    def later(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            mill.accepted["b1"] = with_cursors(result_line("a"), result_line("b"))
            mill.batches["b1"]["status"] = "completed"

    client = stage.client()
    client._driver._sleep = later

    assert ids(client.handle("b1").results(ordered=False)) == ["a", "b"]
    assert waits == [0.25, 0.375, 0.5625]


@pytest.mark.parametrize("cut", [0, 30, 400, 10_000])
def test_a_connection_that_breaks_costs_no_row_and_doubles_none(stage, mill, cut):
    mixed(mill)
    mill.cuts = [cut, cut]

    assert ids(stage.client().handle("b1").results(ordered=False)) == ["d", "a", "b", "c"]


def test_accepted_rows_are_given_without_waiting(stage, mill):
    mill.add("b1", status="in_progress")
    mill.accepted["b1"] = with_cursors(*(result_line(name) for name in "abc"))
    client = stage.client()

    first = list(client.batches.accepted("b1", limit=2))
    rest = list(client.batches.accepted("b1", after=first[-1].cursor))

    assert (ids(first), ids(rest), stage.waits) == (["a", "b"], ["c"], [])


def test_a_batch_that_failed_validation_names_its_lines(stage, mill):
    mill.add("b1", status="failed")
    errors = [{"code": "x", "message": f"bad {i}", "line": i} for i in range(1, 6)]
    mill.batches["b1"]["errors"] = {"object": "list", "data": errors}

    for ordered in (True, False):
        with pytest.raises(BatchFailed, match=r"line 1: bad 1 .*line 3: bad 3 .* 2 more") as raised:
            list(stage.client().handle("b1").results(ordered=ordered))
        assert len(raised.value.errors) == 5


def test_without_the_input_ordered_results_say_the_way_out(stage, mill):
    mixed(mill)
    del mill.files["file-b1-input"]

    with pytest.raises(UsageError, match="ordered=False"):
        list(stage.client().handle("b1").results())


@pytest.mark.parametrize(
    ("ordered", "wrong"), [(True, "3"), (True, "1-1"), (False, "a b"), (False, "1,2")]
)
def test_a_cursor_that_is_none_is_refused(stage, mill, ordered, wrong):
    mixed(mill)

    with pytest.raises(UsageError, match="is no cursor"):
        list(stage.client().handle("b1").results(ordered=ordered, after=wrong))


def test_the_async_client_gives_the_same_rows(stage, mill):
    names = mixed(mill)

    async def run(ordered):
        async with stage.async_client() as client:
            return [r.custom_id async for r in client.handle("b1").results(ordered=ordered)]

    assert asyncio.run(run(True)) == names
    assert asyncio.run(run(False)) == ["d", "a", "b", "c"]


def test_who_stops_reading_leaves_nothing_open(stage, mill, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mixed(mill)

    rows = stage.client().handle("b1").results()
    next(rows)
    rows.close()

    assert list(tmp_path.iterdir()) == []


def test_the_codes_of_rows_that_were_never_run_are_those_of_the_service():
    assert NEVER_RUN_CODES == THEIRS
