"""One answer of a row as the OpenAI API writes it: text, log-probabilities, why it ended."""

from __future__ import annotations

from typing import Any

from gristmill.types import Choice


def chat_choice(index: int, choice: Choice, *, with_logprobs: bool) -> dict[str, Any]:
    """An entry of `choices` of a chat completion."""
    return {
        "index": index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "logprobs": _chat_logprobs(choice) if with_logprobs else None,
        "finish_reason": choice.finish_reason.value,
    }


def completion_choice(index: int, choice: Choice, *, with_logprobs: bool) -> dict[str, Any]:
    """An entry of `choices` of a text completion."""
    return {
        "index": index,
        "text": choice.text,
        "logprobs": _completion_logprobs(choice) if with_logprobs else None,
        "finish_reason": choice.finish_reason.value,
    }


def _chat_logprobs(choice: Choice) -> dict[str, Any]:
    """One entry for each generated token; the alternatives hold it only if it is one of them."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        token = choice.token_bytes[token_id]
        return {
            "token": token.decode(errors="replace"),
            "logprob": _rounded(logprob),
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


def _completion_logprobs(choice: Choice) -> dict[str, Any]:
    """Four lists with one entry for each generated token; the sampled one is in `top_logprobs`."""
    tokens = [_name(choice.token_bytes[token_id]) for token_id in choice.token_ids]
    top_logprobs = []
    for token, at in zip(tokens, choice.logprobs, strict=True):
        top: dict[str, float] = {}
        for other, logprob in at.top:  # of two tokens with the same bytes the likelier one stays
            top.setdefault(_name(choice.token_bytes[other]), _rounded(logprob))
        top.setdefault(token, _rounded(at.logprob))
        top_logprobs.append(top)
    return {
        "tokens": tokens,
        "token_logprobs": [_rounded(at.logprob) for at in choice.logprobs],
        "top_logprobs": top_logprobs,
        "text_offset": list(choice.text_offsets),
    }


def _name(token: bytes) -> str:
    """A token as text, or as bytes:\\xf0\\x9f where it is only a part of a character."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def _rounded(logprob: float) -> float:
    """Seven digits: all that 32 bits hold. Never -0.0."""
    return float(f"{logprob:.7g}") + 0.0
