"""The workloads that every engine under test runs: token ids of SmolLM2, forced output lengths.

    w1  64 requests, prompts of 16 to 512 tokens (log-uniform), outputs of 8 to 256 (heavy tail)
    w2  32 requests on one prefix of 512 tokens, own suffix of 16 to 48, outputs of 1 to 8
    w3  64 requests, prompt 32, output 64
    a8   8 requests, output 48

All are greedy and ignore end tokens, so each engine computes exactly the same number of tokens.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

_SIZES = {"w1": 64, "w2": 32, "w3": 64, "a8": 8}


@dataclass(frozen=True, slots=True)
class Request:
    id: str
    prompt_ids: list[int]
    max_new: int


def load_workload(name: str) -> list[Request]:
    entries = json.loads(Path(__file__).with_name("workloads.json").read_text())[name]
    requests = [Request(e["id"], e["prompt_ids"], e["max_new"]) for e in entries[: _SIZES[name]]]
    if name == "w3":
        return [Request(r.id, r.prompt_ids, 64) for r in requests]
    return requests
