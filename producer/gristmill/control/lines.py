"""From a row's result to its line of the output or the error file, as the OpenAI API has it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from gristmill.control.choices import chat_choice, completion_choice
from gristmill.control.tool_calls import with_tool_calls
from gristmill.types import Endpoint, ModelPin, Row, RowError, RowResult, SamplingParams, Usage

# Legal inside a JSON string, but many readers of JSON lines split at them.
_LINE_BREAKS = str.maketrans({c: f"\\u{ord(c):04x}" for c in "\x7f\x85\u2028\u2029"})


@dataclass(frozen=True, slots=True)
class LineWriter:
    """Writes the lines of one batch. Ids are derived from (batch, row), so that they never vary."""

    batch_id: str
    endpoint: Endpoint
    model: ModelPin

    def answer(self, row: Row, result: RowResult, params: SamplingParams, attempt_id: str) -> bytes:
        """The line of a row that was answered, with a receipt of how."""
        chat = self.endpoint is Endpoint.CHAT
        write = chat_choice if chat else completion_choice
        body = {
            "id": self._id("chatcmpl-" if chat else "cmpl-", row),
            "object": "chat.completion" if chat else "text_completion",
            "created": result.finished_at,
            "model": self.model.name,
            "choices": [
                self._with_tool_calls(
                    row, write(i, choice, with_logprobs=params.logprobs is not None), params
                )
                for i, choice in enumerate(result.choices)
            ],
            "usage": _usage(result.usage),
            "system_fingerprint": f"fp_{self.model.revision[:12]}",
            "gristmill": {
                "attempt": attempt_id,
                "ttft_ms": round(result.ttft_s * 1000, 1),
                "itl_ms": round(result.itl_s * 1000, 1),
                "seed": params.seed,
                "model_revision": self.model.revision,
                "params": _params(params),
            },
        }
        return self._line(row, response=self._response(row, 200, body), error=None)

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
        text = json.dumps(line, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.translate(_LINE_BREAKS).encode() + b"\n"

    def _id(self, prefix: str, row: Row) -> str:
        return derived_id(prefix, self.batch_id, str(row.idx))


def derived_id(prefix: str, *parts: str) -> str:
    """`prefix` and 24 hex digits that depend on nothing but prefix and parts."""
    digest = hashlib.sha256("\0".join((prefix, *parts)).encode())
    return prefix + digest.hexdigest()[:24]


def _params(params: SamplingParams) -> dict[str, Any]:
    """Every parameter as it was in effect, defaults too; the seed stands beside them."""
    effective = asdict(params)
    del effective["seed"]
    if params.grammar is not None:  # which may be as long as the answers of a hundred rows
        digest = hashlib.sha256(params.grammar.text.encode()).hexdigest()
        kind, strict = params.grammar.kind.value, params.grammar.strict
        effective["grammar"] = {"kind": kind, "sha256": digest, "strict": strict}
    effective["logit_bias"] = {str(token_id): bias for token_id, bias in params.logit_bias}
    return effective


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
