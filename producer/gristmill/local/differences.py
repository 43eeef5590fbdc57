"""Compares two answers to one row: the first token, text, log-probability or number that differs.

Ids, creation times, receipts and what the prefix cache happened to hold are left out.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

#: Parts of an answer that say nothing of what was computed.
_LEFT_OUT = {"id", "created", "gristmill", "system_fingerprint", "model", "prompt_tokens_details"}
#: No more differences are named than this; one is mostly the cause of the rest.
MAX_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Difference:
    """`path` leads to the place, as choices[0].text. `token` is the generated token that it is at,
    counted from 0, where that is known."""

    path: str
    then: Any
    now: Any
    token: int | None = None


def differences(
    then: Mapping[str, Any], now: Mapping[str, Any]
) -> tuple[tuple[Difference, ...], int]:
    """Where two bodies of an answer differ, and how many values were compared."""
    comparison = _Comparison(now)
    found = [*islice(comparison.of(then, now, ""), MAX_SHOWN)]
    if not found:  # tokens that differ may read the same
        before, after = (body.get("gristmill", {}).get("token_hashes") for body in (then, now))
        if before is not None and after is not None:
            found = [*islice(comparison.of(before, after, "token_hashes"), MAX_SHOWN)]
    return tuple(found), comparison.num_compared


class _Comparison:
    def __init__(self, now: Mapping[str, Any]) -> None:
        self._now = now
        self.num_compared = 0

    def of(self, then: Any, now: Any, path: str) -> Iterator[Difference]:
        """Depth first, in the order of the fields, so that the first one found comes first."""
        if path.endswith(".embedding"):
            then, now = _numbers(then), _numbers(now)
        if isinstance(then, dict) and isinstance(now, dict):
            for name in dict.fromkeys((*then, *now)):
                if name in _LEFT_OUT or _was_not_asked_for(name, then):
                    continue
                yield from self.of(then.get(name), now.get(name), _join(path, name))
            return
        if isinstance(then, list) and isinstance(now, list):
            yield from self._of_lists(then, now, path)
            return
        self.num_compared += 1
        if then == now and type(then) is type(now):
            return
        is_text = path.endswith((".text", ".message.content"))
        if is_text and isinstance(then, str) and isinstance(now, str):
            yield self._of_texts(then, now, path)
        else:
            yield Difference(path, then, now)

    def _of_lists(self, then: list[Any], now: list[Any], path: str) -> Iterator[Difference]:
        has_tokens = _is_of_tokens(path)
        for i, (one, other) in enumerate(zip(then, now, strict=False)):
            found = self.of(one, other, f"{path}[{i}]")
            if not (has_tokens or path.endswith(".embedding")):
                yield from found
            elif first := next(found, None):
                # Whatever follows another token is another text, and a vector differs as a whole.
                token = i if has_tokens else None
                yield Difference(first.path, first.then, first.now, token)
                return
        if len(then) != len(now):
            yield Difference(f"{path}.length", len(then), len(now))

    def _of_texts(self, then: str, now: str, path: str) -> Difference:
        """Both texts from the first character that differs, and the token that it belongs to."""
        pairs = enumerate(zip(then, now, strict=False))
        at = next((i for i, (a, b) in pairs if a != b), min(len(then), len(now)))
        idx = int(path[len("choices[") : path.index("]")])
        token = _token_at(self._now["choices"][idx], at)
        return Difference(f"{path}[{at}:]", then[at : at + 60], now[at : at + 60], token)


def _was_not_asked_for(name: str, then: Mapping[str, Any]) -> bool:
    """Log-probabilities that only the second answer has."""
    return name == "logprobs" and then.get(name) is None


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _is_of_tokens(path: str) -> bool:
    return ".logprobs." in path and path.rpartition(".")[2] in (
        *("content", "tokens", "token_logprobs"),
        *("top_logprobs", "text_offset"),
    )


def _numbers(embedding: Any) -> Any:
    """A vector as numbers, however it is written."""
    if not isinstance(embedding, str):
        return embedding
    packed = base64.b64decode(embedding)
    return list(struct.unpack(f"<{len(packed) // 4}f", packed))


def _token_at(choice: Mapping[str, Any], at: int) -> int | None:
    """The token of an answer that character `at` of its text belongs to."""
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict):
        return None
    if "text_offset" in logprobs:
        return sum(1 for offset in logprobs["text_offset"] if offset <= at) - 1
    num_bytes = len(str(choice["message"]["content"])[:at].encode())
    end = 0
    for i, token in enumerate(logprobs.get("content") or ()):
        end += len(token["bytes"] or ())
        if end > num_bytes:
            return i
    return len(logprobs.get("content") or ())
