"""Somebody who looks at the dashboard without a browser: follows links and sends forms."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from html.parser import HTMLParser
from typing import Any

import httpx2
from house import House

from gristmill.api.access import Scope
from gristmill.fleet import WorkerBeat, WorkerCard, WorkerState
from gristmill.ledger import batches
from gristmill.ledger.batch import Submission
from gristmill.types import Endpoint, ModelPin

COOKIE = "gristmill_session"


class _Inline(HTMLParser):
    """Collects what a strict policy refuses: scripts and styles that stand in the page itself."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        by_name = dict(attributes)
        if tag == "style" or (tag == "script" and not by_name.get("src")):
            self.found.append(f"<{tag}>")
        for name, value in attributes:
            if name == "style" or name.startswith("on") or "javascript:" in (value or ""):
                self.found.append(f"<{tag} {name}={value!r}>")


class Visitor:
    """`http` keeps the cookies, as a browser does."""

    def __init__(self, house: House, **headers: str) -> None:
        self.http = httpx2.Client(
            base_url=f"{house.service.url}/dashboard",
            timeout=30,
            headers=headers,
            verify=False,  # there is nothing to verify, and to get ready for it takes long
        )

    def log_in(self, key: str, **fields: str) -> httpx2.Response:
        return self.http.post("/login", data={"key": key, **fields})

    def get(self, path: str, **options: Any) -> httpx2.Response:
        answer = self.http.get(path, **options)
        if answer.headers.get("content-type", "").startswith("text/html"):
            assert _Inline(answer.text).found == []
            assert "unsafe" not in answer.headers["content-security-policy"]
        return answer

    def poll(self, path: str) -> httpx2.Response:
        return self.get(path, headers={"hx-request": "true"})

    def token(self) -> str:
        """Of this session: what its forms carry."""
        found = re.search(r'name="form_token" value="(\w+)"', self.follow("/").text)
        assert found is not None
        return found[1]

    def post(self, path: str, *, follow: bool = True, **fields: Any) -> httpx2.Response:
        """A form as a page of this session sends it."""
        answer = self.http.post(path, data={"form_token": self.token(), **fields})
        if follow and answer.status_code == 303:
            return self.follow(answer.headers["location"].removeprefix("/dashboard"))
        return answer

    def follow(self, path: str) -> httpx2.Response:
        answer = self.get(path)
        while answer.status_code in (303, 307):
            answer = self.get(answer.headers["location"].removeprefix("/dashboard"))
        return answer


def visitor(
    house: House, tenant_id: str = "acme", scopes: Iterable[Scope] | None = None
) -> Visitor:
    """Logged in, with all scopes of a tenant unless others are named."""
    key = house.key(tenant_id) if scopes is None else house.key(tenant_id, scopes)
    made = Visitor(house)
    assert made.log_in(key).status_code == 303
    return made


def text_of(page: str) -> str:
    """What a reader sees, roughly: without tags, spaces in one."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def make_batches(house: House, tenant_id: str, count: int, **columns: Any) -> list[str]:
    """So many batches that nobody will run, the oldest first, one a minute."""
    ids = [f"batch_{tenant_id}{i:06d}" for i in range(count)]
    begin = int(house.clock()) - 60 * count
    values = {"status": "completed", "total": 1000, "completed": 990, "failed": 10, **columns}
    with house.data.ledger.write() as conn:
        for i, batch_id in enumerate(ids):
            batches.create(
                conn,
                tenant_id,
                batch_id,
                run_id="run",
                model=ModelPin(name="M", revision="r", tokenizer_hash="t", dtype="float32"),
                seed=batch_id,
                input_fingerprint="f",
                options={},
                created_at=begin + 60 * i,
                expires_at=begin + 60 * i + 86400,
                submission=Submission(Endpoint.CHAT, f"file-{i}", "24h", {"name": f"Night {i}"}),
            )
        statement = batches.batches.update().where(batches.batches.c.id.in_(ids))
        conn.execute(statement.values(in_progress_at=begin, completed_at=begin + 60, **values))
    return ids


def beat(worker_id: str, **fields: Any) -> WorkerBeat:
    """Of a worker that is ready and has some rows."""
    card = WorkerCard(
        worker_id=worker_id,
        host=f"host-{worker_id}",
        model=ModelPin(name="M", revision="r", tokenizer_hash="t", dtype="float32"),
        device="cpu",
        max_row_tokens=4096,
        max_num_seqs=64,
        kv_tokens=10_000,
        adapters=("support@0123",),
        lanes=("pool-4k-0", "bulk"),
    )
    return WorkerBeat(card, 1, WorkerState.READY, 0.0, kv_used_tokens=2500, num_rows=7, **fields)
