"""The fields of the API that come later, and the values of each that mean the same as its absence.

A field is never ignored: one of these with any other value, and one that nobody knows, is refused
by name. Null is neutral for all of them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from gristmill.errors import RowRefused
from gristmill.types import Endpoint

_Neutral = Mapping[str, tuple[Any, ...]]

_BOTH: _Neutral = {
    "length_penalty": (1, 1.0),
    "stream": (False,),
    "stream_options": (),
    "use_beam_search": (False,),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "prompt_logprobs": (),
    "return_token_ids": (False,),
    "priority": (0,),
    "logits_processors": ([],),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
}

_CHAT: _Neutral = {
    **_BOTH,
    "echo": (False,),
    "best_of": (1,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "reasoning_effort": (),
    "verbosity": ("medium",),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "add_special_tokens": (False,),
    "chat_template": (),
    "documents": ([],),
    "mm_processor_kwargs": ({},),
}

_COMPLETIONS: _Neutral = {
    **_BOTH,
    "suffix": ("",),
    "max_completion_tokens": (),
    "add_special_tokens": (True,),
}

_EMBEDDINGS: _Neutral = {
    "add_special_tokens": (True,),
    "chat_template": (),
    "embed_dtype": ("float32",),
    "messages": (),
    "priority": (0,),
    "service_tier": ("auto", "default"),
}

_SCORE: _Neutral = {
    "priority": (0,),
    "service_tier": ("auto", "default"),
}

_NEUTRAL: Mapping[Endpoint, _Neutral] = {
    Endpoint.CHAT: _CHAT,
    Endpoint.COMPLETIONS: _COMPLETIONS,
    Endpoint.EMBEDDINGS: _EMBEDDINGS,
    Endpoint.SCORE: _SCORE,
}

#: What to write instead, where there is something.
_INSTEAD = {
    (Endpoint.COMPLETIONS, "max_completion_tokens"): "On this endpoint it is called `max_tokens`.",
    (Endpoint.CHAT, "functions"): "Write them as `tools`: the same, a level deeper.",
    (Endpoint.CHAT, "function_call"): "Write it as `tool_choice`.",
}


def refuse_unsupported(
    body: Mapping[str, Any], *, endpoint: Endpoint, supported: Collection[str]
) -> None:
    """Raises RowRefused for the first field that this version would have to ignore."""
    for name, value in body.items():
        if name in supported:
            continue
        neutral = _NEUTRAL[endpoint].get(name)
        if neutral is None:
            raise RowRefused(
                f"`{name}` is no parameter of {endpoint}. Remove it or correct its name; your own "
                "data belongs into `metadata`.",
                param=name,
                code="unknown_parameter",
            )
        if value is None or any(type(value) is type(same) and value == same for same in neutral):
            continue
        raise RowRefused(
            f"`{name}` is not supported yet. {_way_out(endpoint, name, neutral)}",
            param=name,
            code="unsupported_parameter",
        )


def _way_out(endpoint: Endpoint, name: str, neutral: tuple[Any, ...]) -> str:
    if instead := _INSTEAD.get((endpoint, name)):
        return instead
    if neutral:
        return f"Leave it out or set it to {_json(neutral[0])}."
    return "Leave it out."


def _json(value: Any) -> str:
    return json.dumps(value)
