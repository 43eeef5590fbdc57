"""Short ways to read one body, and to see it refused."""

from __future__ import annotations

from typing import Any

import pytest

from gristmill.errors import RowRefused
from gristmill.requests.bodies import read_body
from gristmill.types import Endpoint, SamplingParams

VOCAB_SIZE = 49152
USER = [{"role": "user", "content": "hi"}]


def chat_body(**fields: Any) -> Any:
    body = {"model": "M", "messages": USER, **fields}
    return read_body(body, endpoint=Endpoint.CHAT, vocab_size=VOCAB_SIZE)


def completion_body(**fields: Any) -> Any:
    body = {"model": "M", "prompt": "hi", **fields}
    return read_body(body, endpoint=Endpoint.COMPLETIONS, vocab_size=VOCAB_SIZE)


def params(**fields: Any) -> SamplingParams:
    found: SamplingParams = completion_body(**fields).sampling(max_tokens=5, derived_seed=77)
    return found


def refusal(read: Any, **fields: Any) -> RowRefused:
    with pytest.raises(RowRefused) as caught:
        read(**fields)
    assert caught.value.status_code == 400
    return caught.value
