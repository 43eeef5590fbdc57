"""Workers in the Ledger, the same on both databases; and as operators list them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx2
import pytest
from house import House
from ledgers import ledger as ledger
from ledgers import postgresql as postgresql
from ledgers import postgresql_process as postgresql_process
from sqlalchemy import delete, update

from gristmill.api.access import DEFAULT_SCOPES, Scope
from gristmill.client import Client, PermissionDeniedError
from gristmill.fleet import FORGET_AFTER_S, StepTime, WorkerBeat, WorkerCard, WorkerState
from gristmill.ledger import workers
from gristmill.ledger.ledger import Ledger
from gristmill.ledger.schema_fleet import workers as table
from gristmill.types import ModelPin

PIN = ModelPin("m", "rev", "tok", "float32")
CARD = WorkerCard(
    *("wrk-a", "host-1", PIN, "cuda NVIDIA H200", 8192, 64),
    memory_bytes=2**40,
    kv_tokens=100_000,
    features=("generate", "score"),
    lanes=("pool-8k-1", "bulk"),
    version="1.0",
    prefill_tokens_per_s=((512, 900.5), (2048, 800.0)),
    decode_tokens_per_s=120.0,
    step_time=StepTime(0.01, 0.0001, 1e-7),
)
NOW = 1_000_000
ENDED = WorkerState.ENDED


@pytest.fixture(autouse=True)
def empty(request: pytest.FixtureRequest) -> None:
    """The server keeps what other tests have put there."""
    if "ledger" in request.fixturenames:
        with request.getfixturevalue("ledger").write() as conn:
            conn.execute(delete(table))


def beat(
    worker_id: str = "wrk-a", seq: int = 0, state: WorkerState = WorkerState.READY
) -> WorkerBeat:
    return WorkerBeat(replace(CARD, worker_id=worker_id), seq, state, 5.5, num_rows=seq)


def put(ledger: Ledger, *beats: WorkerBeat, now: int = NOW) -> int:
    with ledger.write() as conn:
        return workers.put_beats(conn, beats, now=now)


def ids_alive(ledger: Ledger, now: float) -> list[str]:
    with ledger.read() as conn:
        return [known.card.worker_id for known in workers.list_alive(conn, now)]


def test_a_worker_is_known_as_it_said_it_is(ledger: Ledger) -> None:
    assert put(ledger, beat(seq=2)) == 1

    with ledger.read() as conn:
        (known,) = workers.list_workers(conn)
    assert (known.beat, known.first_heard_at, known.heard_at) == (beat(seq=2), NOW, NOW)


def test_only_a_newer_beat_takes_the_place_of_one(ledger: Ledger) -> None:
    put(ledger, beat(seq=5))

    assert put(ledger, beat(seq=5), beat(seq=4), now=NOW + 30) == 0
    assert put(ledger, beat(seq=7), beat(seq=6), beat(seq=7), now=NOW + 40) == 1

    with ledger.read() as conn:
        (known,) = workers.list_workers(conn)
    assert (known.beat.seq, known.first_heard_at, known.heard_at) == (7, NOW, NOW + 40)


def test_those_that_have_ended_or_are_lost_are_not_alive(ledger: Ledger) -> None:
    put(ledger, beat("lost"), now=NOW - 46)
    put(
        ledger,
        beat("ended", state=WorkerState.ENDED),
        beat("loading", state=WorkerState.LOADING),
        beat("draining", state=WorkerState.DRAINING),
        beat("ready"),
    )

    assert ids_alive(ledger, NOW) == ["draining", "loading", "ready"]
    assert ids_alive(ledger, NOW + 45) == ["draining", "loading", "ready"]
    assert ids_alive(ledger, NOW + 45.5) == []


def test_a_list_is_read_page_by_page(ledger: Ledger) -> None:
    put(ledger, *(beat(f"w{n}") for n in range(5)), beat("w5", state=WorkerState.ENDED))

    found: list[str] = []
    with ledger.read() as conn:
        while page := workers.list_workers(conn, limit=2, after_id=found[-1] if found else ""):
            found += [known.card.worker_id for known in page]
        some = workers.list_workers(conn, with_ended=False)

    assert found == [f"w{n}" for n in range(6)]
    assert len(some) == 5


def test_workers_are_forgotten_after_a_day_and_gone_ones_sooner_when_there_are_many(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the last one that tells how long rows its pool takes: its rows would be refused."""
    monkeypatch.setattr(workers, "MAX_GONE", 2)
    put(ledger, beat("old"), now=NOW - int(FORGET_AFTER_S) - 1)
    larger = replace(CARD, max_row_tokens=2**15)
    ended = (WorkerBeat(replace(larger, worker_id=f"large-{n}"), 0, ENDED, 5.5) for n in range(2))
    put(ledger, *ended, now=NOW - 300)
    for n in range(4):
        put(ledger, beat(f"gone-{n}", state=ENDED), now=NOW - 100 + n)
    put(ledger, *(beat(f"alive-{n}") for n in range(4)), now=NOW - 200 + 190)

    with ledger.write() as conn:
        forgotten = workers.forget_old(conn, now=NOW)
        again = workers.forget_old(conn, now=NOW)
        left = workers.list_workers(conn)

    gone = ["gone-0", "gone-1", "large-1", "old"]
    assert sorted(known.card.worker_id for known in forgotten) == gone
    assert again == []
    assert [known.card.worker_id for known in left] == [
        *(f"alive-{n}" for n in range(4)),
        *("gone-2", "gone-3", "large-0"),
    ]


def test_what_another_version_has_written_is_passed_over(ledger: Ledger) -> None:
    put(ledger, beat("known"), beat("strange"))
    with ledger.write() as conn:
        of_strange = update(table).where(table.c.worker_id == "strange")
        conn.execute(of_strange.values(beat=json.dumps({"v": 99, "kind": "beat"})))

    assert put(ledger, beat("strange", seq=1)) == 1
    with ledger.write() as conn:
        conn.execute(of_strange.values(beat="nothing"))
        assert [known.card.worker_id for known in workers.list_alive(conn, NOW)] == ["known"]


def test_control_processes_at_once_keep_the_newest_of_each(ledger: Ledger) -> None:
    def hear(start: int) -> None:
        for seq in range(start, 24, 3):
            put(ledger, *(beat(f"w{n}", seq=seq) for n in range(8)))

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(hear, n) for n in range(3)]:
            done.result()

    with ledger.read() as conn:
        assert [known.beat.seq for known in workers.list_workers(conn)] == [23] * 8


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with House.opened() as house:
        yield house


def client(house: House, *scopes: Scope) -> Client:
    return Client(base_url=f"{house.service.url}/v1", api_key=house.key(scopes=scopes))


def http_of_operator(house: House) -> httpx2.Client:
    key = house.key(scopes=(Scope.OPERATOR,))
    return house.http(headers={"authorization": f"Bearer {key}"})


def test_operators_see_the_worker_of_gristmill_up(house: House) -> None:
    with client(house, Scope.OPERATOR) as operator:
        house.wait_for(lambda: [one.state for one in operator.workers.list()] == ["ready"])
        (worker,) = operator.workers.list()

    assert (worker.model, worker.device, worker.max_row_tokens) == ("M", "cpu", 512)
    assert worker.lanes[1:] == ["bulk"] and worker.lanes[0].startswith("pool-512-")
    assert {"generate", "logprobs", "score"} <= set(worker.features)


def test_a_tenants_own_admin_sees_no_workers(house: House) -> None:
    with client(house, *DEFAULT_SCOPES, Scope.ADMIN) as other, pytest.raises(PermissionDeniedError):
        other.workers.list()


def test_workers_are_listed_with_all_that_they_told(house: House) -> None:
    control = house.service.control
    beats = [beat("x1"), beat("x2", state=WorkerState.ENDED), beat("x3")]
    put(control.ledger, *beats, now=control.now)
    put(control.ledger, beat("x0"), now=control.now - 100)

    with client(house, Scope.OPERATOR) as operator, http_of_operator(house) as http:
        listed = {one.id: one for one in operator.workers.list(limit=1) if one.id[0] == "x"}
        with_ended = [one.id for one in operator.workers.list(include_ended=True, limit=2)]
        wrong = [
            http.get("/v1/workers", params={"after": after}).status_code
            for after in ("a b", "wrk-0", "x\0")
        ]
    with control.ledger.write() as conn:
        conn.execute(delete(table).where(table.c.worker_id.like("x%")))

    assert {one.id: one.state for one in listed.values()} == {
        "x0": "lost",
        "x1": "ready",
        "x3": "ready",
    }
    assert with_ended[-4:] == ["x0", "x1", "x2", "x3"]
    one = listed["x1"].to_dict()
    assert 0 <= control.now - one["last_seen_at"] <= 60
    assert one["prefill_tokens_per_second"] == {"512": 900.5, "2048": 800.0}
    assert (one["host"], one["kv_tokens"], one["decode_tokens_per_second"]) == (
        "host-1",
        100_000,
        120.0,
    )
    # 64 rows, and no more than 48 and 12 of them in 100,000 tokens of KV cache.
    assert one["decode_tokens_per_second_by_length"] == pytest.approx(
        {
            "128": 64 / (0.0164 + 64 * 128 * 1e-7),
            "512": 64 / (0.0164 + 64 * 512 * 1e-7),
            "2048": 48 / (0.0148 + 48 * 2048 * 1e-7),
            "8192": 12 / (0.0112 + 12 * 8192 * 1e-7),
        },
        abs=0.1,
    )
    assert wrong == [404, 404, 404]


def test_the_answer_names_no_tenant(house: House) -> None:
    with http_of_operator(house) as http:
        answer = http.get("/v1/workers")

    assert answer.status_code == 200 and "tenant" not in answer.text
