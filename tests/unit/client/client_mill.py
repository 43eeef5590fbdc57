"""A service of files and batches in memory, as the client sees it; no row is ever computed."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import httpx2
from client_stage import batch, refuses, says

_FORM = re.compile(rb'filename="([^"]*)"\r\n[^\r]*\r\n\r\n(.*)\r\n--[0-9a-f]+--\r\n$', re.S)


def result_line(custom_id: str, text: str = "yes") -> dict[str, Any]:
    body = {
        "choices": [{"index": 0, "message": {"content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
        "gristmill": {"dtype": "float32", "seed": 7, "ttft_ms": 1.5},
    }
    response = {"status_code": 200, "request_id": "req", "body": body}
    return {"id": "x", "custom_id": custom_id, "response": response, "error": None}


def error_line(custom_id: str, code: str = "bad") -> dict[str, Any]:
    body = {"error": {"code": code, "message": "was bad"}}
    response = {"status_code": 400, "request_id": "req", "body": body}
    return {"id": "x", "custom_id": custom_id, "response": response, "error": None}


def never_run_line(custom_id: str, code: str = "batch_expired") -> dict[str, Any]:
    error = {"code": code, "message": "too late"}
    return {"id": "x", "custom_id": custom_id, "response": None, "error": error}


def as_bytes(lines: list[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(line)}\n" for line in lines).encode()


@dataclass
class Mill:
    """Put it on a stage: `stage.answers = [mill.answer]`."""

    files: dict[str, bytes] = field(default_factory=dict)
    batches: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: Of each batch, the lines that were accepted, each with its cursor.
    accepted: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    #: From the batch with this number on none is created.
    refuse_from: int = 1000
    #: After how many bytes the next streams of accepted rows are cut.
    cuts: list[int] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)

    def add(self, batch_id: str, *, status: str = "completed", **files: list[Any]) -> None:
        """A batch with the lines of its `input`, `output` and `error` file."""
        fields = {}
        for which, lines in files.items():
            self.files[f"file-{batch_id}-{which}"] = as_bytes(lines)
            fields[f"{which}_file_id"] = f"file-{batch_id}-{which}"
        self.batches[batch_id] = batch(batch_id, status, **fields)

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path.removeprefix("/v1")
        method = request.method
        if path == "/files" and method == "POST":
            return self._upload(request)
        if match := re.fullmatch(r"/files/([^/]+)/content", path):
            return self._content(match[1], request)
        if match := re.fullmatch(r"/files/([^/]+)", path):
            self.deleted.append(match[1])
            return says({"id": match[1], "object": "file", "deleted": True})(request)
        if path == "/batches" and method == "POST":
            return self._create(request)
        if match := re.fullmatch(r"/batches/([^/]+)/results", path):
            return self._accepted(match[1], request)
        if match := re.fullmatch(r"/batches/([^/]+)/cancel", path):
            self.cancelled.append(match[1])
            return says(self.batches[match[1]])(request)
        if match := re.fullmatch(r"/batches/([^/]+)", path):
            return says(self.batches[match[1]])(request)
        raise AssertionError(f"{method} {path}")

    def _upload(self, request: httpx2.Request) -> httpx2.Response:
        match = _FORM.search(request.content)
        assert match is not None
        file_id = f"file-{len(self.files) + 1}"
        self.files[file_id] = match[2]
        return says({"id": file_id, "object": "file", "bytes": len(match[2])})(request)

    def _content(self, file_id: str, request: httpx2.Request) -> httpx2.Response:
        if file_id not in self.files:
            return refuses(404, "not_found")(request)
        return httpx2.Response(200, content=self.files[file_id])

    def _create(self, request: httpx2.Request) -> httpx2.Response:
        if len(self.batches) + 1 >= self.refuse_from:
            return refuses(400, "no_more")(request)
        batch_id = f"batch_{len(self.batches) + 1}"
        self.batches[batch_id] = batch(batch_id, "validating", **json.loads(request.content))
        return says(self.batches[batch_id])(request)

    def _accepted(self, batch_id: str, request: httpx2.Request) -> httpx2.Response:
        lines = self.accepted.get(batch_id, [])
        after, limit = request.url.params.get("after"), request.url.params.get("limit")
        if after:
            cursors = [line["cursor"] for line in lines]
            lines = lines[cursors.index(after) + 1 :]
        body = as_bytes(lines[: int(limit) if limit else None])
        if self.cuts:
            return httpx2.Response(200, stream=_Cut(body[: self.cuts.pop(0)]))
        return httpx2.Response(200, content=body)


class _Cut(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    def __init__(self, body: bytes) -> None:
        self._body = body

    def __iter__(self):
        yield self._body
        raise httpx2.RemoteProtocolError("peer closed connection")

    async def __aiter__(self):
        yield self._body
        raise httpx2.RemoteProtocolError("peer closed connection")
