"""Behind the end of a batch: what failed runs again, what is old is removed, what is not wanted
is deleted."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import openai
import pytest
from house import House, custom_ids, document, make_lines
from local_run import make_line
from openai.types import Batch
from pipeline import read_lines

from gristmill.control.removal import WRITE_GRACE_S
from gristmill.ledger import courses
from gristmill.requests.window import RowSeeds


def retry(house: House, batch: Batch, *, tenant_id: str = "acme") -> Batch:
    path = f"/batches/{batch.id}/retry"
    return house.client(tenant_id).post(path, cast_to=Batch)


def delete(house: House, batch: Batch) -> dict[str, Any]:
    with house.http() as http:
        return document(http.delete(f"/v1/batches/{batch.id}"))


def retry_of(batch: Batch) -> Any:
    return (batch.model_extra or {})["retry_of"]


@contextmanager
def later(house: House, seconds: float) -> Iterator[None]:
    house.clock.ahead_s += seconds
    try:
        yield
    finally:
        house.clock.ahead_s -= seconds


def cancel_midway(house: House, lines: list[str]) -> Batch:
    house.pause_midway()
    batch = house.create(lines, metadata={"a": "b"}, completion_window="7d")
    batch = house.wait(batch, lambda b: b.request_counts and b.request_counts.completed >= 2)
    house.client().batches.cancel(batch.id)
    ended = house.wait(batch)
    house.engine.resume()
    return ended


def test_a_retry_runs_the_rows_that_have_no_answer_as_they_would_have_run(house: House) -> None:
    lines = make_lines(30, temperature=1)
    lines[11] = make_line("bad", best_of=3)
    whole = house.wait(house.create(lines))
    batch = cancel_midway(house, lines)

    made = retry(house, batch)
    ended = house.wait(made)

    assert retry_of(batch) is None and retry_of(made) == batch.id
    assert made.status == "validating" and made.input_file_id == batch.input_file_id
    assert (made.endpoint, made.completion_window) == (batch.endpoint, "7d")
    assert made.metadata == {"a": "b"} and ended.status == "completed"
    missing = custom_ids(house.lines(batch.error_file_id))
    first, second = house.lines(batch.output_file_id), house.lines(ended.output_file_id)
    assert custom_ids(second) == [one for one in missing if one != "bad"]
    assert custom_ids(house.lines(ended.error_file_id)) == ["bad"]
    assert sorted(custom_ids([*first, *second])) == sorted(
        custom_ids(house.lines(whole.output_file_id))
    )
    # The seed is copied, so a sampled row draws what it would have drawn in the first batch.
    seeds = RowSeeds(batch.id)
    for line in (*first, *second):
        assert line["response"]["body"]["gristmill"]["seed"] == seeds.of(line["custom_id"])

    # And on: what failed there too.
    last = house.wait(retry(house, ended))
    assert retry_of(last) == ended.id and last.request_counts is not None
    assert last.request_counts.to_dict() == {"total": 1, "completed": 0, "failed": 1}


def test_the_same_retry_again_gives_the_same_batch(house: House) -> None:
    batch = house.wait(house.create(make_lines(3, best_of=3)))

    with ThreadPoolExecutor(4) as pool:
        ids = {made.id for made in pool.map(lambda _: retry(house, batch), range(8))}
    (made_id,) = ids
    made = house.wait(house.client().batches.retrieve(made_id))
    assert retry(house, batch).id == made_id

    # A retry that is deleted does not stand in the way of another one.
    assert delete(house, made)["deleted"]
    assert retry(house, batch).id != made_id


def test_a_batch_that_ended_before_its_file_was_read_is_retried_as_a_whole(house: House) -> None:
    house.pause_ingest()
    try:
        batch = house.wait(house.client().batches.cancel(house.create(make_lines(3)).id))
    finally:
        house.resume_ingest()

    ended = house.wait(retry(house, batch))

    assert batch.status == "cancelled"
    assert custom_ids(house.lines(ended.output_file_id)) == ["row-0", "row-1", "row-2"]


def test_what_cannot_be_retried_is_refused_with_the_way_out(house: House) -> None:
    client = house.client()
    done = house.wait(house.create(make_lines(2)))
    failed = house.wait(house.create(b"{"))
    gone = house.wait(house.create(make_lines(2, best_of=3)))
    lost = house.wait(house.create(make_lines(2, best_of=3)))
    client.files.delete(gone.input_file_id)
    client.files.delete(lost.error_file_id or "")
    house.engine.paused = True
    running = house.wait(house.create(make_lines(2)), lambda b: b.status == "in_progress")

    for batch, words in (
        (done, "nothing to retry"),
        (failed, "failed validation"),
        (gone, "There is no file"),
        (lost, "There is no file"),
    ):
        with pytest.raises(openai.BadRequestError, match=words) as refusal:
            retry(house, batch)
        assert refusal.value.code == "nothing_to_retry"
    with pytest.raises(openai.ConflictError, match="in_progress") as conflict:
        retry(house, running)
    with pytest.raises(openai.ConflictError, match="in_progress"):
        client.delete(f"/batches/{running.id}", cast_to=object)
    house.engine.paused = False
    house.wait(running)

    # The official client sends a 409 again, unless it is told that there is no use in it.
    assert conflict.value.response.headers["x-should-retry"] == "false"
    assert conflict.value.code == "batch_not_ended"


def test_the_files_of_a_retry_stay_while_it_reads_them(house: House) -> None:
    batch = house.wait(house.create(make_lines(2, best_of=3)))
    house.pause_ingest()
    try:
        made = retry(house, batch)
        for file_id in (batch.input_file_id, batch.error_file_id or ""):
            with pytest.raises(openai.BadRequestError) as refusal:
                house.client().files.delete(file_id)
            assert refusal.value.code == "file_in_use"
    finally:
        house.resume_ingest()
    house.wait(made)

    assert house.client().files.delete(batch.error_file_id or "").deleted


def test_a_deleted_batch_is_gone_and_its_files_are_not(house: House) -> None:
    client = house.client("deleter")
    made = [house.create(make_lines(2), tenant_id="deleter") for _ in range(5)]
    made = [house.wait(batch, tenant_id="deleter") for batch in made]
    page = client.batches.list(limit=2)

    with house.http("deleter") as http:
        answer = http.delete(f"/v1/batches/{made[3].id}")
        again = http.delete(f"/v1/batches/{made[3].id}")

    assert document(answer) == {"id": made[3].id, "object": "batch", "deleted": True}
    assert again.status_code == 404
    with pytest.raises(openai.NotFoundError):
        client.batches.retrieve(made[3].id)
    # A list goes on behind one that was deleted meanwhile.
    assert [batch.id for batch in page.data] == [made[4].id, made[3].id]
    assert [batch.id for batch in page.get_next_page().data] == [made[2].id, made[1].id]
    assert [b.id for b in client.batches.list()] == [made[i].id for i in (4, 2, 1, 0)]
    assert len(house.lines(made[3].output_file_id, tenant_id="deleter")) == 2
    prefix = f"t/deleter/b/{made[3].id}/"
    with later(house, WRITE_GRACE_S + 1):
        house.wait_for(lambda: not list(house.data.store.list(prefix)))
    assert len(house.lines(made[3].output_file_id, tenant_id="deleter")) == 2


def test_results_are_read_from_the_files_once_the_work_is_removed(house: House) -> None:
    lines = make_lines(12)
    lines[5] = make_line("bad", best_of=3)
    batch = cancel_midway(house, lines)
    with house.http() as http:
        url = f"/v1/batches/{batch.id}/results"
        before = read_lines(http.get(url).content)
        early = http.get(url, params={"after": "output-0"})
        with later(house, house.settings.work_lifetime_s + 1):
            prefix = f"t/acme/b/{batch.id}/"
            house.wait_for(lambda: len(list(house.data.store.list(prefix))) == 2)
            after = read_lines(http.get(url).content)
            parts: list[dict[str, Any]] = []
            while some := read_lines(http.get(url, params=cursor(parts) | {"limit": 2}).content):
                parts += some
            old = http.get(url, params={"after": before[0]["cursor"]})
            wrong = [
                http.get(url, params={"after": text})
                for text in ("output-1", "error-7", "output-999999", "else-0")
            ]
        house.client().files.delete(batch.output_file_id or "")
        with later(house, house.settings.work_lifetime_s + 1):
            gone = http.get(url)

    # Those in the order of acceptance, these in the order of the files, and never-run rows in none.
    assert parts == after and len(after) == len(before)
    ids = custom_ids(after)
    assert sorted(ids) == sorted(custom_ids(before)) and ids[-1] == "bad"
    by_id = {line["custom_id"]: line for line in before}
    for line in after:
        line.pop("cursor")
        other = dict(by_id[line["custom_id"]])
        other.pop("cursor")
        assert line == other
    assert (old.status_code, document(old)["error"]["code"]) == (400, "cursor_expired")
    assert [answer.status_code for answer in (*wrong, early)] == [400] * 5
    assert (gone.status_code, document(gone)["error"]["code"]) == (404, "results_gone")


def cursor(lines: list[dict[str, Any]]) -> dict[str, Any]:
    return {"after": lines[-1]["cursor"]} if lines else {}


def test_a_retry_of_large_files_reads_both_side_by_side(house: House) -> None:
    """In pieces of any size the same rows are selected."""
    import io

    from gristmill.control.retried_rows import _Selected

    lines = [make_line(f"é-{i}", prompt="x" * (i % 7)) for i in range(500)]
    wanted = [i for i in range(500) if i % 3]
    names = "".join(f'{{"id":"x","custom_id":"é-{i}"}}\n' for i in wanted)
    source = "\ufeff" + "\r\n\n".join(lines)
    for size in (1, 7, 100_000):
        selected = _Selected(io.BytesIO(source.encode()), io.BytesIO(names.encode()))
        found = b""
        while piece := selected.read(size):
            found += piece
        assert found.decode().splitlines() == [lines[i] for i in wanted]


def test_of_a_deleted_batch_no_course_is_kept(house: House) -> None:
    batch = house.wait(house.create(make_lines(1)))

    def found() -> courses.Course | None:
        with house.data.ledger.read() as conn:
            return courses.find(conn, "acme", batch.id)

    before = found()
    with house.http() as http:
        http.delete(f"/v1/batches/{batch.id}")

    assert before is not None and sum(point.rows for point in before.points) == 1
    assert found() is None
