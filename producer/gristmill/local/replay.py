"""Runs one row of a result file again, alone, and says where its answer differs, if anywhere."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gristmill.adapters import parts_of
from gristmill.errors import GristmillError, UsageError
from gristmill.local.differences import Difference, differences
from gristmill.local.pipeline import run
from gristmill.local.values import RunConfig
from gristmill.requests.envelope import parse_json
from gristmill.settings import Settings

#: What a receipt says of where a row was computed, and how people call it.
_ENVIRONMENT = {
    "model_revision": "model",
    "tokenizer_hash": "tokenizer",
    "template_hash": "chat template",
    "engine_version": "engine version",
    "dtype": "dtype",
}
_CHAT = "/v1/chat/completions"
_COMPLETIONS = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Changed:
    """Something about the place where the row is computed is not what it was."""

    what: str
    then: str | None
    now: str | None


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """`differences` is empty when the row came out the same; `changed` may explain why not."""

    custom_id: str
    endpoint: str
    num_compared: int
    differences: tuple[Difference, ...]
    changed: tuple[Changed, ...]

    @property
    def is_same(self) -> bool:
        return not self.differences


class ReplayFailed(GristmillError):
    """The row could not be answered again."""


def replay(
    result_path: Path,
    input_path: Path,
    custom_id: str,
    *,
    model_name: str | None,
    revision: str | None,
    settings: Settings,
    adapters: tuple[str, ...] = (),
) -> ReplayReport:
    """Answer the row again with the parameters of its receipt.

    Without a `model_name` the name in the request is taken for one. `adapters` as in RunConfig.
    Raises UsageError (no such
    row, no receipt, the row had failed) and ReplayFailed.
    """
    then = _answer_of(result_path, custom_id)
    request = find_line(input_path, custom_id)
    body = request.get("body")
    if not isinstance(body, dict):
        raise UsageError(f"Row {custom_id!r} of {input_path} has no body: it is no batch input.")
    name = str(body.get("model"))
    again = {**request, "body": amended(body, then["gristmill"], endpoint=str(request.get("url")))}
    now = _run(
        *(again, model_name or name, name), revision=revision, settings=settings, adapters=adapters
    )
    found, num_compared = differences(then, now)
    return ReplayReport(
        custom_id=custom_id,
        endpoint=str(request.get("url")),
        num_compared=num_compared,
        differences=found,
        changed=_changed(then["gristmill"], now["gristmill"]),
    )


def find_line(path: Path, custom_id: str) -> dict[str, Any]:
    """The row of a JSONL file with this custom_id. Raises UsageError."""
    if not path.is_file():
        raise UsageError(f"There is no file {str(path)!r}.")
    # Looking for the bytes is far cheaper than reading every line, and misses what is escaped.
    for must_hold in (custom_id.encode(errors="replace"), b""):
        row = _find(path, custom_id, must_hold)
        if row is not None:
            return row
    raise UsageError(
        f"{path} has no row with the custom_id {custom_id!r}. A row that failed is in the file of "
        "errors."
    )


def _find(path: Path, custom_id: str, must_hold: bytes) -> dict[str, Any] | None:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if must_hold not in line or not line.strip():
                continue
            try:
                row = parse_json(line.removeprefix(b"\xef\xbb\xbf").strip())
            except ValueError as error:
                raise UsageError(f"Line {number} of {path} is not valid JSON: {error}") from error
            if isinstance(row, dict) and row.get("custom_id") == custom_id:
                return row
    return None


def _answer_of(path: Path, custom_id: str) -> dict[str, Any]:
    """The body of a row that was answered."""
    row = find_line(path, custom_id)
    response = row.get("response")
    body = response.get("body") if isinstance(response, dict) else None
    if not isinstance(response, dict) or not isinstance(body, dict) or "error" in body:
        error = row.get("error") or (body or {}).get("error") or {}
        raise UsageError(
            f"Row {custom_id!r} of {path} has no answer to compare with"
            + (f": it failed ({error.get('message')})." if error.get("message") else ".")
        )
    receipt = body.get("gristmill")
    if not isinstance(receipt, dict) or not isinstance(receipt.get("params"), dict):
        raise UsageError(
            f"Row {custom_id!r} of {path} has no receipt (`gristmill`), so it is not known how it "
            "was answered. Give the output file of a run of Gristmill."
        )
    return body


def amended(
    body: Mapping[str, Any], receipt: Mapping[str, Any], *, endpoint: str
) -> dict[str, Any]:
    """The body with what the receipt knows better: the seed and the limit that were in effect.

    Log-probabilities are asked for where the row had none, so that tokens can be told apart; they
    change nothing about the answer.
    """
    params = receipt["params"]
    again = dict(body)
    if endpoint not in (_CHAT, _COMPLETIONS):
        known = ("pooling", "normalize", "dimensions")
        return {**again, **{name: params[name] for name in known if name in params}}
    seed = receipt.get("seed") or 0
    again["seed"] = seed - 2**64 if seed >= 2**63 else seed
    if params.get("max_tokens"):
        again.pop("max_completion_tokens", None)
        again["max_tokens"] = params["max_tokens"]
    if params.get("logprobs") is None and not again.get("echo"):
        again["logprobs"] = True if endpoint == _CHAT else 0
    return again


def _run(
    request: dict[str, Any],
    model_name: str,
    served_name: str,
    *,
    revision: str | None,
    settings: Settings,
    adapters: tuple[str, ...],
) -> dict[str, Any]:
    """The body of the answer to one request, computed alone on this machine."""
    is_adapter = served_name in [parts_of(option)[0] for option in adapters]
    with tempfile.TemporaryDirectory(prefix="gristmill-replay-") as folder:
        place = Path(folder)
        config = RunConfig(
            input_path=place / "in.jsonl",
            output_path=place / "out.jsonl",
            errors_path=place / "errors.jsonl",
            work_dir=place / "work",
            model_name=model_name,
            revision=revision,
            served_names=() if is_adapter else (served_name,),
            settings=settings,
            adapters=adapters,
        )
        config.input_path.write_text(json.dumps(request) + "\n", encoding="utf-8")
        summary = run(config, on_progress=lambda progress: None, should_stop=lambda: False)
        if summary.errors:
            raise ReplayFailed(f"The row is not valid here: {summary.errors[0].message}")
        if summary.failed:
            error = json.loads(config.errors_path.read_text(encoding="utf-8"))
            message = ((error.get("response") or {}).get("body") or error)["error"]["message"]
            raise ReplayFailed(f"The row was answered then, and fails now: {message}")
        answer = json.loads(config.output_path.read_text(encoding="utf-8"))
    body: dict[str, Any] = answer["response"]["body"]
    return body


def _changed(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Changed, ...]:
    return tuple(
        Changed(what, then.get(name), now.get(name))
        for name, what in _ENVIRONMENT.items()
        if then.get(name) != now.get(name)
    )
