"""The rows of a batch while it runs: in the order of acceptance, each once, from any cursor on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from house import House, custom_ids, make_lines
from local_run import make_line
from openai.types import Batch
from pipeline import make_result, make_segment, read_lines

from gristmill.control.accept import accept
from gristmill.control.accepted import Cursor, accepted_lines
from gristmill.control.base import read_batch
from gristmill.stores.keys import segment_key, shard_key
from gristmill.stores.segments import bell_of
from gristmill.wire import decode_shard, encode_segment


def results(house: House, batch: Batch, **query: Any) -> list[dict[str, Any]]:
    params = {name: value for name, value in query.items() if value is not None}
    with house.http() as http:
        answer = http.get(f"/v1/batches/{batch.id}/results", params=params)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/x-ndjson"
    return read_lines(answer.content)


def test_results_are_read_on_while_the_batch_runs(house: House) -> None:
    house.pause_midway()
    batch = house.create([*make_lines(20), make_line("bad", best_of=3)])
    batch = house.wait(batch, lambda b: b.request_counts and b.request_counts.completed)
    found = results(house, batch, limit=3)
    assert found and batch.status == "in_progress"
    house.engine.resume()
    while batch.status not in ("completed", "failed"):
        found += results(house, batch, after=found[-1]["cursor"], limit=3)
        batch = house.client().batches.retrieve(batch.id)
    while some := results(house, batch, after=found[-1]["cursor"], limit=3):
        found += some

    from_files = [*house.lines(batch.output_file_id), *house.lines(batch.error_file_id)]
    by_id = {line["custom_id"]: line for line in from_files}
    assert sorted(custom_ids(found)) == sorted(by_id)
    assert results(house, batch) == found
    for line in found:
        cursor = line.pop("cursor")
        assert line == by_id[line["custom_id"]], cursor


def test_any_cursor_goes_on_behind_its_own_line(house: House) -> None:
    batch = house.wait(house.create(make_lines(10)))
    every = results(house, batch)

    for i, line in enumerate(every):
        assert results(house, batch, after=line["cursor"]) == every[i + 1 :]


def test_a_batch_that_is_validated_or_failed_has_no_results(house: House) -> None:
    house.pause_ingest()
    batch = house.create(make_lines(2))
    assert results(house, batch) == []
    house.resume_ingest()
    house.wait(batch)

    failed = house.wait(house.create(b"{"))
    assert results(house, failed) == []


def test_a_cursor_that_is_none_is_refused(house: House) -> None:
    batch = house.wait(house.create(make_lines(1)))

    with house.http() as http:
        for wrong in ("x", "1", "-1-2", "1-", "1-1", "9" * 40, "batch_1", ""):
            answer = http.get(f"/v1/batches/{batch.id}/results", params={"after": wrong})
            assert answer.status_code == 400


def test_a_cursor_of_another_order_is_refused(house: House) -> None:
    batch = house.wait(house.create(make_lines(2)))
    number, position, trail = results(house, batch)[0]["cursor"].split("-")

    with house.http() as http:
        after = f"{number}-{position}-{int(trail, 16) ^ 1:x}"
        answer = http.get(f"/v1/batches/{batch.id}/results", params={"after": after})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "cursor_expired"
    assert "was rebuilt since" in answer.json()["error"]["message"]


def test_a_row_that_two_attempts_finish_is_told_once(house: House) -> None:
    house.engine.paused = True
    created = house.create(make_lines(4))
    house.wait(created, lambda b: b.status == "in_progress")
    control = house.service.control
    batch = read_batch(control, "acme", created.id)
    shard = decode_shard(control.store.get(shard_key("acme", batch.id, batch.run_id, 0)))
    jobs = list(enumerate(shard.jobs))
    twice = [jobs[:2], jobs[1:3], jobs[:3]]
    for i, some in enumerate(twice):
        rows = [make_result(job, idx) for idx, job in some]
        made = make_segment(batch, 0, rows, attempt=f"att-{i}")
        control.store.put(segment_key(bell_of(made)), encode_segment(made))
        accept(control, [bell_of(made)])
    batch = read_batch(control, "acme", created.id)

    lines = list(accepted_lines(control.ledger, control.store, batch, Cursor()))

    (first, *_), (second, *_), (third, *_) = lines
    assert (first.position, second, third.position) == (1, replace(first, position=2), 1)
    assert third.number > first.number
    assert [b'"row-%d"' % i in line for i, (_, line) in enumerate(lines)] == [True] * 3
    house.engine.paused = False
    house.wait(created)
    assert sorted(custom_ids(results(house, created))) == [f"row-{i}" for i in range(4)]
