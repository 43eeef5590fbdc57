"""An answer after a reason: JSON that guided decoding holds to its form, parsed and checked.

The probabilities of the answers are those of the token that tells them apart, among the 20
likeliest that a chat reports there; an answer that is not among those has none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.scores.task import AnswerUnusable

_NUM_TOP = 20
#: Tokens for the JSON around the reason and the answer.
_TOKENS_AROUND = 48
#: Most bytes of a character in JSON (\uXXXX; UTF-8 has 4). A token has one at least.
_BYTES_PER_CHAR = 6


@dataclass(frozen=True, slots=True)
class Reasoned:
    answer_idx: int
    reason: str
    #: By answer: the share of the model's probability that stood on it.
    masses: tuple[float, ...]


def reasoned_body(answers: Sequence[str], reason_chars: int) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {
            "reason": {"type": "string", "maxLength": reason_chars},
            "answer": {"enum": list(answers)},
        },
        "required": ["reason", "answer"],
        "additionalProperties": False,
    }
    return {
        "guided_json": schema,
        "temperature": 0,
        # The schema bounds the reason. This bound must never cut it, and is lowered by the service
        # to what the context leaves.
        "max_tokens": _BYTES_PER_CHAR * (reason_chars + max(map(len, answers))) + _TOKENS_AROUND,
        "logprobs": True,
        "top_logprobs": _NUM_TOP,
    }


def read_reasoned(body: Mapping[str, Any], answers: Sequence[str]) -> Reasoned:
    """Raises AnswerUnusable when the document is cut off, or its answer is not allowed."""
    [choice] = body["choices"]
    text = choice["message"]["content"] or ""
    try:
        document = json.loads(text)
        answer, reason = document["answer"], str(document["reason"])
    except (ValueError, KeyError, TypeError) as error:
        cut = " It was cut off." if choice["finish_reason"] == "length" else ""
        raise AnswerUnusable(
            "answer_unreadable",
            f"The answer is not the JSON that was asked for.{cut} {text[-80:]!r}",
        ) from error
    if answer not in answers:
        raise AnswerUnusable("answer_not_allowed", f"{answer!r} is none of {list(answers)}.")
    entries = choice["logprobs"]["content"]
    return Reasoned(answers.index(answer), reason, _masses(entries, text, answers))


def _masses(
    entries: Sequence[Mapping[str, Any]], text: str, answers: Sequence[str]
) -> tuple[float, ...]:
    """Walk the tokens of the answer, until what was written can be one of them only."""
    begin = len(text[: text.rindex('"answer"')].encode()) + len('"answer":')
    prefix = text.encode()[:begin]
    spelled = [prefix + json.dumps(answer, ensure_ascii=False).encode() for answer in answers]
    masses = [0.0] * len(answers)
    written, reach = b"", 1.0
    for entry in entries:
        own = bytes(entry["bytes"])
        if len(written) + len(own) > begin:
            options = {bytes(top["bytes"]): top["logprob"] for top in entry["top_logprobs"]}
            options[own] = entry["logprob"]
            own_leads_to: list[int] = []
            for option, logprob in options.items():
                led_to = [i for i, one in enumerate(spelled) if _agree(written + option, one)]
                share = 0.0 if logprob is None else reach * math.exp(logprob)
                if option == own:
                    own_leads_to = led_to
                # Where what was written leads to several, the next token tells them apart.
                if led_to and not (option == own and len(led_to) > 1):
                    masses[min(led_to, key=lambda i: len(spelled[i]))] += share
            if len(own_leads_to) <= 1:
                return tuple(masses)
            reach *= 0.0 if entry["logprob"] is None else math.exp(entry["logprob"])
        written += own
    return tuple(masses)


def _agree(path: bytes, whole: bytes) -> bool:
    """Whether one of them begins with the other."""
    return whole.startswith(path) or path.startswith(whole)
