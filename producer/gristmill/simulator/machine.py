"""What a simulated Worker runs on: the limits and speeds of its card, and how long a step takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gristmill.fleet import Feature, WorkerCard, prefill_length
from gristmill.step_speeds import StepSpeeds
from gristmill.types import ModelPin

#: The model that all machines of a simulation run, unless they name another one.
PIN = ModelPin("model", "revision", "tokenizer", "bfloat16")
_BLOCK = 16


@dataclass(frozen=True, slots=True)
class Machine:
    """One kind of machine. `prefill_tokens_per_s` is as in WorkerCard: (length class, rate) pairs.

    A step with decoding rows lasts `step_s(1 row)` at least, since all weights are read once, and
    grows with each row to what makes `decode_tokens_per_s` with `max_num_seqs` rows of no context.
    Reading the KV cache comes on top: `context_tokens_per_s` is how many tokens of it are read per
    second. Prefill that shares the step hides behind the weights as far as it is shorter.
    """

    name: str
    max_row_tokens: int
    max_num_seqs: int
    kv_tokens: int
    prefill_tokens_per_s: tuple[tuple[int, float], ...]
    decode_tokens_per_s: float
    #: What a row that runs alone decodes; None: a step takes as long with one row as with all.
    lone_tokens_per_s: float | None = None
    #: None: as fast as can be.
    context_tokens_per_s: float | None = None
    max_num_batched_tokens: int = 512
    features: tuple[str, ...] = (Feature.GENERATE, Feature.GRAMMAR, Feature.LOGPROBS)
    #: From the start of the process until it takes work: import, load, warm-up.
    start_s: float = 0.0

    @property
    def full_step_s(self) -> float:
        """A step that decodes `max_num_seqs` rows."""
        return self.max_num_seqs / self.decode_tokens_per_s

    @property
    def lone_step_s(self) -> float:
        """A step that decodes one row."""
        return 1 / self.lone_tokens_per_s if self.lone_tokens_per_s else self.full_step_s

    @property
    def row_step_s(self) -> float:
        """What each further row adds to a step."""
        return (self.full_step_s - self.lone_step_s) / max(self.max_num_seqs - 1, 1)

    def step_s(self, num_decoding: int, num_context_tokens: float, prefill_s: float) -> float:
        """How long a step takes. `prefill_s` is what its prompt tokens would take alone."""
        more_rows_s = self.row_step_s * max(num_decoding - 1, 0)
        rate = self.context_tokens_per_s
        context_s = num_context_tokens / rate if rate else 0.0
        return max(self.lone_step_s, prefill_s) + more_rows_s + context_s

    def prefill_s_per_token(self, num_prompt_tokens: int) -> float:
        """Of a prompt of that length: by the class it belongs to, or the nearest that is known."""
        length = prefill_length(num_prompt_tokens)
        nearest = min(self.prefill_tokens_per_s, key=lambda pair: abs(math.log(pair[0] / length)))
        return 1 / nearest[1]

    def blocks(self, num_tokens: int) -> int:
        """Tokens of KV cache that so many tokens take, in whole Blocks."""
        return -(-num_tokens // _BLOCK) * _BLOCK

    def card(self, worker_id: str, lanes: tuple[str, ...], speeds: StepSpeeds) -> WorkerCard:
        """What a Worker on this machine tells of itself: speeds as it measured them."""
        return WorkerCard(
            worker_id=worker_id,
            host=worker_id,
            model=PIN,
            device=self.name,
            max_row_tokens=self.max_row_tokens,
            max_num_seqs=self.max_num_seqs,
            kv_tokens=self.kv_tokens,
            features=tuple(sorted(self.features)),
            lanes=lanes,
            prefill_tokens_per_s=speeds.prefill_tokens_per_s,
            decode_tokens_per_s=speeds.decode_tokens_per_s,
            step_time=speeds.step_time,
        )
