"""From a row's result to its line of the output or the error file, as the OpenAI API has it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec

from gristmill.control.choices import chat_choice, completion_choice
from gristmill.control.receipt import Origin, receipt
from gristmill.control.scores import scores
from gristmill.control.tool_calls import with_tool_calls
from gristmill.control.vectors import embedding_list
from gristmill.types import (
    Choice,
    Endpoint,
    Job,
    ModelPin,
    Row,
    RowError,
    RowResult,
    SamplingParams,
    Usage,
)

# Legal inside a JSON string, but many readers of JSON lines split at them.
_ESCAPED = {c.encode(): b"\\u%04x" % ord(c) for c in "\x7f\x85\u2028\u2029"}
#: One of them is in every line that holds one of those.
_SIGNS = (b"\x7f", b"\xc2\x85", b"\xe2\x80")
#: One for all lines.
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class LineWriter:
    """Writes the lines of one batch. Ids are derived from (batch, row), so that they never vary."""

    batch_id: str
    endpoint: Endpoint
    model: ModelPin

    @property
    def _fingerprint(self) -> str:
        """Another one for other weights: those of the model, and of its adapter."""
        return "_".join(["fp", *(part[:12] for part in self.model.revision.split("+"))])

    def answer(self, row: Row, result: RowResult, job: Job, origin: Origin) -> bytes:
        """The line of a row that was answered, with a receipt of how."""
        if job.embedding:
            body = self._embeddings(result, job)
        elif job.scoring:
            body = self._scores(row, result, job)
        else:
            body = self._choices(row, result, job)
        body["gristmill"] = receipt(self.model, job, result, origin)
        return self._line(row, response=self._response(row, 200, body), error=None)

    def _embeddings(self, result: RowResult, job: Job) -> dict[str, Any]:
        assert job.embedding is not None, "asked for by the caller"
        return embedding_list(result, model_name=self.model.name, as_base64=job.embedding.base64)

    def _scores(self, row: Row, result: RowResult, job: Job) -> dict[str, Any]:
        return {
            "id": self._id("score-", row),
            "object": "score",
            "created": result.finished_at,
            "model": self.model.name,
            **scores(result, job),
            "usage": _usage(result.usage),
            "system_fingerprint": self._fingerprint,
        }

    def _choices(self, row: Row, result: RowResult, job: Job) -> dict[str, Any]:
        chat, params = self.endpoint is Endpoint.CHAT, job.params
        with_logprobs = params.logprobs is not None

        def entry(i: int, choice: Choice) -> dict[str, Any]:
            if chat:
                return chat_choice(i, choice, with_logprobs=with_logprobs)
            echoed = job.prompts[i // params.n].token_ids if params.echo else ()
            return completion_choice(i, choice, with_logprobs=with_logprobs, echoed=echoed)

        return {
            "id": self._id("chatcmpl-" if chat else "cmpl-", row),
            "object": "chat.completion" if chat else "text_completion",
            "created": result.finished_at,
            "model": self.model.name,
            "choices": [
                self._with_tool_calls(row, entry(i, choice), params)
                for i, choice in enumerate(result.choices)
            ],
            "usage": _usage(result.usage),
            "system_fingerprint": self._fingerprint,
        }

    def _with_tool_calls(
        self, row: Row, entry: dict[str, Any], params: SamplingParams
    ) -> dict[str, Any]:
        if params.tools is None:
            return entry
        place = f"{row.idx}/{entry['index']}"
        return with_tool_calls(
            entry, params.tools, lambda i: derived_id("call_", self.batch_id, place, str(i))
        )

    def failure(self, row: Row, error: RowError) -> bytes:
        """The line of a row without an answer: refused like an HTTP call, or never run."""
        if error.status_code is None:
            never_run = {"code": error.code, "message": error.message}
            return self._line(row, response=None, error=never_run)
        body = {
            "error": {
                "message": error.message,
                "type": error.type,
                "param": error.param,
                "code": error.code,
            }
        }
        return self._line(row, response=self._response(row, error.status_code, body), error=None)

    def _response(self, row: Row, status_code: int, body: dict[str, Any]) -> dict[str, Any]:
        return {
            "status_code": status_code,
            "request_id": self._id("req_", row),
            "body": body,
        }

    def _line(
        self, row: Row, *, response: dict[str, Any] | None, error: dict[str, Any] | None
    ) -> bytes:
        line = {
            "id": self._id("batch_req_", row),
            "custom_id": row.custom_id,
            "response": response,
            "error": error,
        }
        text = _encode(line)
        if any(sign in text for sign in _SIGNS):  # which most lines have not
            for character, escaped in _ESCAPED.items():
                text = text.replace(character, escaped)
        return text + b"\n"

    def _id(self, prefix: str, row: Row) -> str:
        return derived_id(prefix, self.batch_id, str(row.idx))


def derived_id(prefix: str, *parts: str) -> str:
    """`prefix` and 24 hex digits that depend on nothing but prefix and parts."""
    digest = hashlib.sha256("\0".join((prefix, *parts)).encode())
    return prefix + digest.hexdigest()[:24]


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
