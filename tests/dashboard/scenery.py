"""A service with something on every page: batches in all states, workers, keys, a webhook's log."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

from house import House, make_lines
from local_run import make_line
from sqlalchemy import update
from visitor import make_batches
from webhook_receiver import Receiver

from gristmill.api.access import Scope
from gristmill.fleet import WorkerBeat, WorkerCard, WorkerState
from gristmill.histogram import Histogram
from gristmill.ledger import courses, paces, shards, workers
from gristmill.ledger.batch_times import BatchTimes
from gristmill.ledger.batches import batches
from gristmill.ledger.courses import Course, Point
from gristmill.ledger.schema import shards as shards_table
from gristmill.ledger.shards import NewShard, ShardState
from gristmill.queues.base import BULK_LANE
from gristmill.types import ModelPin

TENANT = "acme"
PIN = ModelPin(name="smollm2-135m", revision="r", tokenizer_hash="t", dtype="float32")
LANE = "pool-8k-3f9ac1d27b604e58"
_JOBS = (
    *("Product reviews, sentiment", "Support tickets, routing", "Contract clauses"),
    *("Catalogue translation fr-de", "Safety labels, week 47", "Eval: 12k questions"),
    *("Embedding refresh", "Meeting summaries", "Invoice fields", "Synthetic dialogues"),
)


@dataclass(frozen=True)
class Scenery:
    """Paths of the pages, below the dashboard."""

    running: str
    done: str
    refused: str
    endpoint: str

    @property
    def pages(self) -> tuple[str, ...]:
        return (
            *("/batches", "/batches?status=failed", self.running, self.done, self.refused),
            *("/fleet", "/keys", "/webhooks", self.endpoint, "/nowhere"),
        )


def furnish(house: House) -> Scenery:
    """Batches that are really run, and others as they would be on a busy machine."""
    with Receiver() as receiver, house.http(TENANT) as http:
        wanted = {"name": "Nightly report", "url": receiver.url, "event_types": ["batch.completed"]}
        made = http.post("/v1/webhook_endpoints", json=wanted).json()
        lines = [*make_lines(30), make_line("too-long", max_tokens=5000), make_line("odd", n=0)]
        done = house.wait(house.create(lines, metadata={"name": "Product questions"}))
        path = f"/v1/webhook_endpoints/{made['id']}/deliveries"
        house.wait_for(lambda: http.get(path).json()["data"][0]["status"] == "delivered")
    broken = ["{", make_line("a"), make_line("a")]
    refused = house.wait(house.create(broken, metadata={"name": "Draft prompts"}))
    access = house.service.access
    access.make_key(TENANT, name="ci pipeline", expires_at=int(house.clock()) + 40 * 86400)
    access.make_key(TENANT, name="notebook", scopes=(Scope.BATCHES_READ, Scope.FILES_READ))
    _, old = access.make_key(TENANT, name="old laptop")
    with house.http(TENANT) as http:
        http.delete(f"/v1/api_keys/{old.id}")
    running = _busy_batches(house)
    beat_all(house)
    return Scenery(
        running=f"/batches/{running}",
        done=f"/batches/{done.id}",
        refused=f"/batches/{refused.id}",
        endpoint=f"/webhooks/{made['id']}",
    )


def _busy_batches(house: House) -> str:
    """Ten of them; the id of one that runs."""
    now = int(house.clock())
    ids = make_batches(house, TENANT, len(_JOBS))
    for i, (batch_id, name) in enumerate(zip(ids, _JOBS, strict=True)):
        total = (120_000, 48_000, 7_500, 250_000, 12_000)[i % 5]
        created_at = now - 450 * (len(_JOBS) - i) ** 2
        values: dict[str, Any] = {
            "created_at": created_at,
            "in_progress_at": created_at + 20,
            "completed_at": created_at + 20 + 390 * (len(_JOBS) - i),
            "metadata": {"name": name, "team": "search"},
            "model_name": PIN.name,
            "total": total,
            "completed": total - total // 300,
            "failed": total // 300,
            "prompt_tokens": 212 * total,
            "completion_tokens": 96 * total,
            "cached_tokens": 61 * total,
        }
        if i in (7, 9):
            done = (0.62, 0.08)[i == 9]
            values |= {
                "status": "in_progress",
                "completed_at": None,
                "completed": int(total * done),
                "failed": 31,
                "prompt_tokens": int(212 * total * done),
                "completion_tokens": int(96 * total * done),
                "cached_tokens": int(61 * total * done),
                "expected_tokens": 308 * total,
            }
        if i in (3, 5):
            values |= {"status": ("cancelled", "expired")[i == 5], "completed": total // 3}
        with house.data.ledger.write() as conn:
            conn.execute(update(batches).where(batches.c.id == batch_id).values(**values))
    _course(house, ids[7], ids[9], now)
    return ids[7]


def _course(house: House, batch_id: str, other_id: str, now: int) -> None:
    """Of a batch that runs; both have Shards out."""
    course = Course(now - 4000)
    for i in range(200):
        wave = 1 + 0.25 * math.sin(i / 7) + 0.1 * math.sin(i * 1.7)
        rows = int(500 * wave * min(1.0, (i + 2) / 9) * (0.45 if 90 <= i < 104 else 1))
        point = Point(rows, 212 * rows, 96 * rows)
        course = course.with_point(point, now=now - 4000 + 20 * i)
    course = course.with_failures({"context_length_exceeded": 22, "invalid_value": 9})
    ttft, itl = Histogram(), Histogram()
    for i in range(1000):
        ttft.add(0.12 + 0.9 * (i / 1000) ** 4)
        itl.add(0.018 + 0.03 * (i / 1000) ** 6)
    with house.data.ledger.write() as conn:
        conn.execute(
            courses.courses.insert().values(
                batch_id=batch_id,
                tenant_id=TENANT,
                begins_at=course.begins_at,
                width_s=course.width_s,
                points=[[p.rows, p.prompt_tokens, p.completion_tokens] for p in course.points],
                failures=dict(course.failures),
            )
        )
        times = BatchTimes(
            4650, 4650 * 310.0, 4650 * 21.0, 4650 * 1.9, 4650 * 0.3, 4650 * 3.1, ttft
        )
        measured = {
            "times": times.to_wire(),
            "ttft": ttft.to_wire(),
            "itl": itl.to_wire(),
            "first_sent_at": now - 4010,
        }
        conn.execute(update(batches).where(batches.c.id == batch_id).values(**measured))
        for i, batch in enumerate((batch_id, other_id)):
            sent = [NewShard(n, 256, 256, 54_000, 79_000) for n in range((11, 43)[i])]
            shards.add(conn, TENANT, batch, 0, sent)
        is_ours = shards_table.c.tenant_id == TENANT
        is_shown = shards_table.c.batch_id.in_([batch_id, other_id])
        conn.execute(
            update(shards_table)
            .where(is_ours, is_shown)
            .values(state=ShardState.SENT, lane=LANE, sent_at=now, ring_at=now + 86_400)
        )
        pace = {"lane": BULK_LANE, "model_name": PIN.name, "num_tokens": 770_000.0, "busy_s": 120.0}
        conn.execute(paces.paces.insert().values(**pace, heard_at=float(now)))


def beat_all(house: House) -> None:
    """All workers say how they are."""
    machines = (
        ("gpu-a1", "cuda NVIDIA L4", 131_072, 0.71, WorkerState.READY, 41, 2950.0),
        ("gpu-a2", "cuda NVIDIA L4", 131_072, 0.64, WorkerState.READY, 38, 2870.0),
        ("gpu-b1", "cuda NVIDIA H200", 1_048_576, 0.33, WorkerState.DRAINING, 12, 610.0),
        ("cpu-7", "cpu", 32_768, 0.0, WorkerState.LOADING, 0, 0.0),
    )
    with house.data.ledger.write() as conn:
        for host, device, kv_tokens, used, state, rows, speed in machines:
            card = WorkerCard(
                worker_id=f"w-{host}",
                host=host,
                model=PIN,
                device=device,
                max_row_tokens=8192 if kv_tokens < 1e6 else 131_072,
                max_num_seqs=64,
                kv_tokens=kv_tokens,
                lanes=(LANE, BULK_LANE),
            )
            beat = WorkerBeat(
                card,
                time.time_ns(),
                state,
                float(house.clock()),
                num_rows=rows,
                num_waiting=rows // 2,
                kv_used_tokens=int(kv_tokens * used),
                tokens_per_s=speed,
            )
            workers.put_beat(conn, beat, now=int(house.clock()))
