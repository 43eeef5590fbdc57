"""A row's logits are the same bits alone and in any company, and its ids are the oracle's.

The fast path in float32 on the CPU, through the Engine's door: ten random groupings and orders,
prefix cache on and off, chunks of 16 to 512 tokens, forced preemption, and resume.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from drive import make_engine
from packed import as_engine_takes_it
from shrink import ALL, make_oracle
from spy import LogitsSpy
from test_architectures import rows_of
from tiny import greedy_alone, greedy_job
from verdicts import NOT_BIT_STABLE, NOT_BUILDABLE, REFUSED

from gristmill_worker.engine.base import NOTHING, Generated
from gristmill_worker.models.loader import LoadedModel, load_model

ACCEPTED = [name for name in ALL if name not in REFUSED and name not in NOT_BUILDABLE]
SLOW = pytest.mark.slow
#: The rest takes minutes: architectures that differ in what could go wrong with bits.
SAMPLE = ("llama", "gpt2", "gemma2", "mixtral", "diffllama", "gemma3n_text")
NUM_GENERATED = 7
#: What a step may hold, and more that bears on who shares it.
SETTINGS: list[dict[str, Any]] = [
    {"max_num_batched_tokens": 16, "max_num_seqs": 3},
    {"max_num_batched_tokens": 16, "max_num_seqs": 8, "prefix_caching": False},
    {"max_num_batched_tokens": 33, "max_num_seqs": 2},
    {"max_num_batched_tokens": 100, "max_num_seqs": 8},
    {"max_num_batched_tokens": 512, "max_num_seqs": 8, "prefix_caching": False},
    {"max_num_batched_tokens": 512, "max_num_seqs": 8},
]


def run_watched(
    loaded: LoadedModel,
    attention: Any,
    rows: dict[str, list[int]],
    *,
    num_generated: int = NUM_GENERATED,
    resume: dict[str, Generated] | None = None,
    num_blocks: int = 64,
    **limits: Any,
) -> tuple[dict[str, list[int]], dict[str, dict[int, torch.Tensor]], int]:
    """Ids and logits of each row, and how often rows were preempted."""
    engine = make_engine(
        loaded, num_blocks=num_blocks, block_size=16, attention=attention, **limits
    )
    spy, num_preempted = LogitsSpy(engine), 0
    for seq_id, row in rows.items():
        job = greedy_job(row, num_generated, ignore_eos=True)
        engine.add(seq_id, job, (resume or {}).get(seq_id, NOTHING))
    ids: dict[str, list[int]] = {}
    while engine.num_live:
        output = engine.step()
        num_preempted += output.num_preempted
        for end in output.finished:
            assert end.error is None
            ids[end.seq_id] = list(end.generated.token_ids)
    logits = {
        seq_id: {
            n: row for n, row in spy.logits[seq_id].items() if n < len(rows[seq_id] + ids[seq_id])
        }
        for seq_id in rows
    }
    return ids, logits, num_preempted


def shared_and_other_rows(rows: list[list[int]]) -> dict[str, list[int]]:
    """The rows, and two more that begin as the longest one does."""
    longest = max(rows, key=len)
    forks = [longest[:32] + rows[0], longest[:-3] + rows[1][:5]]
    return {str(i): row for i, row in enumerate([*rows, *forks])}


class Comparison:
    """Rows alone, each in an Engine of its own and without drafts, against rows in company."""

    def __init__(self, loaded: LoadedModel, attention: Any, rows: dict[str, list[int]]) -> None:
        self.loaded, self.attention, self.rows = loaded, attention, rows
        self.ids: dict[str, list[int]] = {}
        self.logits: dict[str, dict[int, torch.Tensor]] = {}
        self.largest = 0.0
        for seq_id, row in rows.items():
            ids, logits, _ = run_watched(loaded, attention, {seq_id: row}, draft_fixed_tokens=0)
            self.ids |= ids
            self.logits |= logits

    def in_company(self, order: list[str], **settings: Any) -> int:
        rows = {seq_id: self.rows[seq_id] for seq_id in order}
        ids, logits, num_preempted = run_watched(self.loaded, self.attention, rows, **settings)
        for seq_id in order:
            assert ids[seq_id] == self.ids[seq_id], (seq_id, settings)
            for num_tokens, found in logits[seq_id].items():
                expected = self.logits[seq_id][num_tokens]
                if not torch.equal(found, expected):
                    self.largest = max(self.largest, float((found - expected).abs().max()))
        return num_preempted

    def in_all_ways(self, num_groupings: int) -> None:
        chance = random.Random(4)
        for n in range(num_groupings):
            order = chance.sample(list(self.rows), chance.randint(2, len(self.rows)))
            self.in_company(order, **SETTINGS[n % len(SETTINGS)])
        everyone = list(self.rows)
        # Admission is made to believe that rows are short, and there is room for about two.
        longest = max(map(len, self.rows.values())) + NUM_GENERATED
        num_blocks = -(-longest // 16) + 1
        crowded = {"num_blocks": num_blocks, "expected_output_tokens": 1.0, "max_num_seqs": 8}
        num_preempted = self.in_company(everyone, **crowded)
        num_preempted += self.in_company(everyone[::-1], prefix_caching=False, **crowded)
        assert num_preempted > 0
        half = {
            s: Generated(self.ids[s][: 1 + i], [0] * (1 + i)) for i, s in enumerate(everyone[:4])
        }
        self.in_company(everyone, resume=half)


@pytest.mark.parametrize(
    ("name", "num_groupings"),
    [(name, 2) for name in SAMPLE] + [pytest.param(name, 10, marks=SLOW) for name in ACCEPTED],
)
def test_a_row_has_the_same_bits_in_any_company(
    name: str, num_groupings: int, compiled: Any
) -> None:
    oracle = make_oracle(name)
    loaded = as_engine_takes_it(oracle, packed=True)
    rows = shared_and_other_rows(rows_of([1, 14, 15, 31, 40], seed=2))

    comparison = Comparison(loaded, compiled, rows)
    comparison.in_all_ways(num_groupings)

    for seq_id, row in rows.items():
        assert comparison.ids[seq_id] == greedy_alone(oracle, row, NUM_GENERATED, eos=False)
    if name in NOT_BIT_STABLE:
        bound, _ = NOT_BIT_STABLE[name]
        assert comparison.largest <= bound
    else:
        assert comparison.largest == 0.0


@pytest.mark.real_model
@pytest.mark.parametrize("num_groupings", [1, pytest.param(10, marks=SLOW)])
def test_rows_of_a_real_model_have_the_same_bits_in_any_company(
    num_groupings: int, smollm2_folder: Path, tmp_path: Path, compiled: Any
) -> None:
    loaded = load_model(smollm2_folder, max_model_len=512, cache_dir=tmp_path)
    generator = torch.Generator().manual_seed(5)
    rows = [
        torch.randint(3, loaded.vocab_size, (length,), generator=generator).tolist()
        for length in (15, 45, 62)
    ]

    comparison = Comparison(loaded, compiled, shared_and_other_rows(rows))
    comparison.in_all_ways(num_groupings)

    assert comparison.largest == 0.0
