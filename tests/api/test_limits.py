"""Requests a minute: never more than a tenant may send, however many API processes there are."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import openai
import pytest
from house import House, document
from postgresql import postgresql as postgresql
from postgresql import postgresql_process as postgresql_process
from sqlalchemy import update

from gristmill.api.access import Access
from gristmill.api.app import create_app
from gristmill.api.context import Api
from gristmill.api.key_text import new_key_text
from gristmill.api.limits import PORTIONS, FailedLogins, RequestLimiter
from gristmill.api.server import HttpServer
from gristmill.ledger import quotas, schema, tenants
from gristmill.ledger.ledger import Ledger
from gristmill.ledger.open import open_ledger
from gristmill.process.health import Health
from gristmill.settings import Settings
from gristmill.stores.local import LocalStore

BEGAN = 60 * 1000


@pytest.fixture(params=["sqlite", "postgresql"])
def ledgers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Ledger]]:
    """One Ledger, as two processes have it."""
    url = str(tmp_path / "ledger.sqlite")
    if request.param == "postgresql":
        url = str(request.getfixturevalue("postgresql"))
    opened = [open_ledger(url) for _ in range(2)]
    with opened[0].write() as conn:
        tenants.ensure(conn, "acme", now=0)
        # The server of PostgreSQL is the same for all tests here.
        conn.execute(update(schema.tenants).values(request_window=None, requests_granted=None))
    yield opened
    for ledger in opened:
        ledger.close()


def test_all_processes_together_let_through_what_the_limit_says(ledgers: list[Ledger]) -> None:
    now = BEGAN + 1.0
    limiters = [RequestLimiter(ledger, lambda: now) for ledger in ledgers]
    num_writes = 0
    take = quotas.take_requests

    def counted(*args: object, **kwargs: object) -> object:
        nonlocal num_writes
        num_writes += 1
        return take(*args, **kwargs)  # type: ignore[arg-type]

    def ask(i: int) -> bool:
        limiter = limiters[i % 2]
        standing = limiter.take_at_hand("acme", 100) or limiter.take("acme", 100)
        return standing.taken

    with patch.object(quotas, "take_requests", counted), ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(ask, range(400)))

    assert sum(taken) == 100
    assert num_writes <= PORTIONS + len(limiters)

    now = BEGAN + 61.0
    again = limiters[0].take("acme", 100)
    assert (again.taken, again.remaining, again.reset_s) == (True, 99, 59.0)


def test_one_process_alone_misses_at_most_what_others_hold(ledgers: list[Ledger]) -> None:
    limiters = [RequestLimiter(ledger, lambda: BEGAN) for ledger in ledgers]
    limiters[1].take("acme", 100)

    taken = [limiters[0].take("acme", 100).taken for _ in range(120)]

    assert sum(taken) == 100 - 100 // PORTIONS


def test_a_limit_that_is_changed_holds_at_once(ledgers: list[Ledger]) -> None:
    limiter = RequestLimiter(ledgers[0], lambda: BEGAN)

    assert [limiter.take("acme", 2).taken for _ in range(3)] == [True, True, False]
    assert [limiter.take("acme", 4).taken for _ in range(3)] == [True, True, False]
    assert not limiter.take("acme", 1).taken
    assert not limiter.take("acme", 0).taken


def test_clocks_that_differ_by_seconds_share_a_minute(ledgers: list[Ledger]) -> None:
    ahead = RequestLimiter(ledgers[0], lambda: BEGAN + 61.0)
    behind = RequestLimiter(ledgers[1], lambda: BEGAN + 59.0)

    taken = [limiter.take("acme", 10).taken for _ in range(10) for limiter in (ahead, behind)]

    assert sum(taken) == 10


def test_clients_of_two_apis_on_one_ledger_share_a_minute(
    ledgers: list[Ledger], tmp_path: Path
) -> None:
    def clock() -> float:
        return BEGAN + 20.0

    def serve(ledger: Ledger) -> tuple[HttpServer, Access]:
        access = Access(ledger, pepper=b"pepper", clock=clock)
        api = Api(
            ledger=ledger,
            store=LocalStore(tmp_path / "store"),
            settings=Settings(quota_requests_per_min=40),
            clock=clock,
            access=access,
            read_health=lambda: Health(live=True, ready=True, state="running"),
        )
        return HttpServer(create_app(api), host="127.0.0.1", port=0), access

    (first, access), (second, _) = map(serve, ledgers)
    text, _ = access.make_key("acme", name="n")
    with first, second:
        clients = [
            openai.OpenAI(base_url=f"{server.url}/v1", api_key=str(text), max_retries=0)
            for server in (first, second)
        ]

        def ask(i: int) -> bool:
            try:
                clients[i % 2].models.list()
            except openai.RateLimitError as refusal:
                assert refusal.response.headers["retry-after"] == "40"
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            taken = list(pool.map(ask, range(60)))

    assert sum(taken) == 40


def test_wrong_keys_from_one_address_are_counted_and_forgotten() -> None:
    now = BEGAN + 30.0
    failed = FailedLogins(lambda: now)
    threads = [threading.Thread(target=failed.add, args=("1.2.3.4",)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failed.wait_s("1.2.3.4", 4) == 0
    assert failed.wait_s("1.2.3.4", 3) == 30.0
    assert failed.wait_s("4.3.2.1", 3) == 0
    now += 31
    assert failed.wait_s("1.2.3.4", 3) == 0


@pytest.fixture(scope="module")
def narrow() -> Iterator[House]:
    """A service that lets few requests through, at a fixed second of a minute."""
    with House.opened(quota_requests_per_min=3, failed_logins_per_min=2) as house:
        yield house


def at_second(house: House, second: float) -> None:
    """Put the clock forward to the next minute's `second`, or further in this one."""
    house.clock.ahead_s += 60 - house.clock() % 60 + second


def test_the_official_client_waits_as_long_as_it_is_told_and_goes_on(narrow: House) -> None:
    client = narrow.client("patient", max_retries=1)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        narrow.clock.ahead_s += seconds

    at_second(narrow, 20)
    for _ in range(3):
        client.models.list()
    with patch("openai._base_client.time.sleep", wait):
        client.models.list()

    assert len(waits) == 1 and 30 < waits[0] <= 40


def test_a_request_too_many_is_told_when_to_come_back(narrow: House) -> None:
    client = narrow.client("eager")
    at_second(narrow, 20)

    raws = [client.models.with_raw_response.list() for _ in range(3)]
    with pytest.raises(openai.RateLimitError) as refusal:
        client.models.list()
    narrow.client("other").models.list()  # others are not held up

    assert [raw.headers["x-ratelimit-remaining-requests"] for raw in raws] == ["2", "1", "0"]
    assert refusal.value.code == "rate_limit_exceeded" and refusal.value.type == "requests"
    headers = refusal.value.response.headers
    assert headers["x-ratelimit-limit-requests"] == "3"
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert 30 < int(headers["retry-after"]) <= 40
    assert int(headers["retry-after-ms"]) <= int(headers["retry-after"]) * 1000
    assert float(headers["x-ratelimit-reset-requests"].removesuffix("s")) <= 40
    assert headers["x-request-id"].startswith("req_")


def test_whoever_shows_many_wrong_keys_waits_and_live_keys_do_not(narrow: House) -> None:
    known = narrow.client("known")
    at_second(narrow, 20)
    known.models.list()

    def show(key: object) -> tuple[int, str]:
        with narrow.http(headers={"authorization": f"Bearer {key}"}) as http:
            answer = http.get("/v1/models")
        return answer.status_code, document(answer)["error"]["code"]

    answers = [show(new_key_text()) for _ in range(3)]
    with patch("gristmill.api.access.BELIEVED_S", -1.0):  # it is looked up again
        known.models.list()
    narrow.client("never seen before").models.list()
    answers.append(show("gm_wrong"))
    at_second(narrow, 1)

    assert answers == [(401, "invalid_api_key")] * 2 + [(429, "rate_limit_exceeded")] * 2
    assert show("gm_wrong") == (401, "invalid_api_key")
