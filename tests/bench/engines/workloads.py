"""The workloads that every engine under test runs: token ids of SmolLM2, forced output lengths.

    w1  64 requests, prompts of 16 to 512 tokens (log-uniform), outputs of 8 to 256 (heavy tail)
    w2  32 requests on one prefix of 512 tokens, own suffix of 16 to 48, outputs of 1 to 8
    w3  64 requests, prompt 32, output 64
    w4 256 requests, each on one of three prefixes of 200 tokens, own part of 8 to 64, outputs of
       4 to 48; a tenth of them is identical to another
    a8   8 requests, output 48

All are greedy and ignore end tokens, so each engine computes exactly the same number of tokens.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

_SIZES = {"w1": 64, "w2": 32, "w3": 64, "a8": 8}


@dataclass(frozen=True, slots=True)
class Request:
    id: str
    prompt_ids: list[int]
    max_new: int


def load_workload(name: str) -> list[Request]:
    if name == "w4":
        return _w4()
    entries = json.loads(Path(__file__).with_name("workloads.json").read_text())[name]
    requests = [Request(e["id"], e["prompt_ids"], e["max_new"]) for e in entries[: _SIZES[name]]]
    if name == "w3":
        return [Request(r.id, r.prompt_ids, 64) for r in requests]
    return requests


def num_computed_tokens(name: str) -> tuple[int, int]:
    """Tokens that an ideal engine computes: each distinct prefix once, identical rows once; and how
    many of them it samples behind. Without draft tokens, which compute more to step less."""
    rows = {(tuple(r.prompt_ids), r.max_new) for r in load_workload(name)}
    num_prompt_tokens, previous = 0, ()
    for prompt_ids, _ in sorted(rows):
        shared = 0
        for one, other in zip(prompt_ids, previous, strict=False):
            if one != other:
                break
            shared += 1
        num_prompt_tokens += len(prompt_ids) - shared
        previous = prompt_ids
    num_sampled = sum(max_new for _, max_new in rows)
    return num_prompt_tokens + num_sampled - len(rows), num_sampled


def _w4() -> list[Request]:
    rng = random.Random(4)
    text = [token for request in load_workload("w1") for token in request.prompt_ids]

    def some(num_tokens: int) -> list[int]:
        at = rng.randrange(len(text) - num_tokens)
        return text[at : at + num_tokens]

    prefixes = [some(200) for _ in range(3)]
    requests: list[Request] = []
    for i in range(256):
        if i % 10 == 9:
            twin = rng.choice(requests)
            requests.append(Request(f"w4-{i}", twin.prompt_ids, twin.max_new))
            continue
        own = some(rng.randint(8, 64))
        requests.append(Request(f"w4-{i}", rng.choice(prefixes) + own, rng.randint(4, 48)))
    rng.shuffle(requests)
    return requests
