"""One answer of a row as the OpenAI API writes it: text, log-probabilities, why it ended."""

from __future__ import annotations

from typing import Any

from gristmill.control.logprobs import name, rounded
from gristmill.types import Choice, TokenLogprob


def chat_choice(index: int, choice: Choice, *, with_logprobs: bool) -> dict[str, Any]:
    """An entry of `choices` of a chat completion."""
    return {
        "index": index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "logprobs": _chat_logprobs(choice) if with_logprobs else None,
        "finish_reason": choice.finish_reason.value,
    }


def completion_choice(
    index: int, choice: Choice, *, with_logprobs: bool, echoed: tuple[int, ...] = ()
) -> dict[str, Any]:
    """An entry of `choices` of a text completion. `echoed` tokens of the prompt are part of it."""
    return {
        "index": index,
        "text": choice.text,
        "logprobs": _completion_logprobs(choice, echoed) if with_logprobs else None,
        "finish_reason": choice.finish_reason.value,
    }


def _chat_logprobs(choice: Choice) -> dict[str, Any]:
    """One entry for each generated token; the alternatives hold it only if it is one of them."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        token = choice.token_bytes[token_id]
        return {
            "token": token.decode(errors="replace"),
            "logprob": rounded(logprob),
            "bytes": list(token),
        }

    content = [
        {
            **entry(token_id, at.logprob),
            "top_logprobs": [entry(other, logprob) for other, logprob in at.top],
        }
        for token_id, at in zip(choice.token_ids, choice.logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


def _completion_logprobs(choice: Choice, echoed: tuple[int, ...]) -> dict[str, Any]:
    """Four lists with one entry for each token, echoed ones first; `top_logprobs` has the token
    itself too. Nothing stands before the first token of a prompt, so its values are null."""
    token_ids = (*echoed, *choice.token_ids)
    tokens = [name(choice.token_bytes[token_id]) for token_id in token_ids]
    reports: list[TokenLogprob | None] = [None] if echoed else []
    reports += [*choice.scored, *choice.logprobs]
    top_logprobs: list[dict[str, float | None] | None] = []
    for token, at in zip(tokens, reports, strict=True):
        if at is None:
            top_logprobs.append(None)
            continue
        top: dict[str, float | None] = {}
        for other, logprob in at.top:  # of two tokens with the same bytes the likelier one stays
            top.setdefault(name(choice.token_bytes[other]), rounded(logprob))
        top.setdefault(token, rounded(at.logprob))
        top_logprobs.append(top)
    return {
        "tokens": tokens,
        "token_logprobs": [None if at is None else rounded(at.logprob) for at in reports],
        "top_logprobs": top_logprobs,
        "text_offset": list(choice.text_offsets),
    }
