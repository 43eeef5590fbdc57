"""What the page of the fleet shows, and to whom."""

from __future__ import annotations

import re

from house import House
from visitor import beat, make_batches, text_of, visitor

from gristmill.api.access import Scope
from gristmill.ledger import shards, workers
from gristmill.ledger.shards import NewShard
from gristmill.queues.base import BULK_LANE


def test_the_fleet_shows_workers_and_backlog_to_operators_only(house: House) -> None:
    now = int(house.clock())
    with house.data.ledger.write() as conn:
        workers.put_beat(conn, beat("aa"), now=now)
        workers.put_beat(conn, beat("bb"), now=now - 3600)
    waiting = make_batches(house, "waiting", 1, status="in_progress", completed=0, failed=0)
    with house.data.ledger.write() as conn:
        shards.add(conn, "waiting", waiting[0], 0, [NewShard(0, 10, 10, 100, 2000)])
        shards.mark_sent(
            conn, shards.get(conn, "waiting", waiting[0], 0), now=now, ring_at=now + 86_400
        )

    shown = visitor(house, scopes=tuple(Scope)).get("/fleet").text
    text = text_of(shown)
    reader = visitor(house, "acme", scopes=(Scope.BATCHES_READ, Scope.ADMIN))
    refused = reader.get("/fleet")

    assert "host-aa" in text and "25 % of 10.0 k tokens" in text and "pool-4k-0" in text
    assert "cpu · M + support" in text
    assert text.index("host-aa") < text.index("host-bb") and "lost" in text
    assert re.search(rf"{BULK_LANE} M 0 10 2.00 k 0 1", text)
    assert refused.status_code == 403 and "lacks the scope" in text_of(refused.text)
    assert "/dashboard/fleet" not in reader.get("/batches").text


def test_the_fleet_counts_workers_of_all_pages(house: House) -> None:
    now = int(house.clock())
    with house.data.ledger.write() as conn:
        for n in range(130):
            workers.put_beat(conn, beat(f"many-{n:03d}", tokens_per_s=10.0), now=now)

    page = visitor(house, scopes=tuple(Scope)).get("/fleet").text

    alive = int(re.findall(r"Workers alive</dt><dd>(\d+)", page)[0])
    assert alive >= 130 and page.count("of 10.0 k tokens") <= 100
    assert int(re.findall(r"pool-4k-0 M (\d+)", text_of(page))[0]) >= 130
