"""What the conformance list works with: a service, its callers, strict parsing.

Needs nothing but the package `openai`, of any version.
"""

from __future__ import annotations

import io
import json
import time
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from openai import DefaultHttpxClient, OpenAI
from openai.types import Batch, FileObject

ENDED = ("completed", "failed", "expired", "cancelled")
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass(frozen=True)
class Stage:
    """`keys` by tenant, whose names end in `suffix`; `reader` may only read batches of `acme`.

    Posting to `hand_url` moves the scenery: see `Hand` in test_conformance.py.
    """

    base_url: str
    hand_url: str
    keys: dict[str, str]
    suffix: str = ""
    #: The paths of all requests that the service has answered so far.
    answers: list[str] = field(default_factory=list)

    def client(self, tenant: str = "acme", **options: Any) -> OpenAI:
        options = {"api_key": self.keys[tenant], "max_retries": 0, "timeout": 60, **options}
        counted = DefaultHttpxClient(event_hooks={"response": [self._count]})
        return OpenAI(**{"base_url": self.base_url, "http_client": counted, **options})

    def _count(self, answer: Any) -> None:
        self.answers.append(answer.url.path)

    def do(self, action: str, **values: Any) -> Any:
        body = json.dumps({"action": action, **values}).encode()
        with urllib.request.urlopen(self.hand_url, body, timeout=60) as answer:
            return json.load(answer)


def strictly(kind: type[Any], document: Any) -> Any:
    """Validated without any leniency, with every field that this version of the client knows."""
    missing = set(kind.model_fields) - set(document)
    assert not missing, f"{kind.__name__} lacks {missing}"
    return kind.model_validate(document, strict=True)


def raw(response: Any) -> Any:
    return response.http_response.json()


def line(custom_id: str, *, url: str = COMPLETIONS, **body: Any) -> str:
    prompt: dict[str, Any] = {"prompt": f"Say {custom_id}"}
    if url == CHAT:
        prompt = {"messages": [{"role": "user", "content": f"Say {custom_id}"}]}
    body = {"model": "M", "max_tokens": 20, **prompt, **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


def upload(client: OpenAI, lines: Iterable[str], **options: Any) -> FileObject:
    body = "".join(f"{one}\n" for one in lines).encode()
    return client.files.create(file=("in.jsonl", io.BytesIO(body)), purpose="batch", **options)


def create(client: OpenAI, lines: Iterable[str], **options: Any) -> Batch:
    fields: dict[str, Any] = {"endpoint": COMPLETIONS, "completion_window": "24h", **options}
    return client.batches.create(input_file_id=upload(client, lines).id, **fields)


def wait(
    client: OpenAI,
    batch: Batch,
    until: Callable[[Batch], Any] = lambda batch: batch.status in ENDED,
) -> Batch:
    give_up_at = time.monotonic() + 60
    while not until(batch):
        assert time.monotonic() < give_up_at, batch
        time.sleep(0.02)
        batch = client.batches.retrieve(batch.id)
    return batch


def rows(client: OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    return [json.loads(one) for one in client.files.content(file_id).text.splitlines()]


def counts_of(client: OpenAI, batch: Batch) -> tuple[str, int, int]:
    """Of a batch that has ended; they are those of the lines of its files, each row once."""
    output, errors = rows(client, batch.output_file_id), rows(client, batch.error_file_id)
    assert batch.request_counts is not None
    counts = batch.request_counts
    assert (counts.completed, counts.failed) == (len(output), len(errors))
    assert counts.total == len({one["custom_id"] for one in (*output, *errors)})
    assert (batch.output_file_id is None, batch.error_file_id is None) == (not output, not errors)
    return batch.status, counts.completed, counts.failed


def refusal(kind: type[Exception], call: Callable[[], Any]) -> Any:
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was expected")
