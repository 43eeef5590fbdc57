"""Compares a model in our Engine with the same model alone in transformers, and says what it found.

The Engine's parts run several rows in mixed steps: chunked prefill beside decode, over scattered
Blocks. Then every row runs alone, eagerly and without cache, by transformers itself. The two models
are never in memory together.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from gristmill.types import Job, Prompt, Row, SamplingParams
from gristmill_worker.attention.base import AttentionBackend
from gristmill_worker.attention.choose import choose_attention
from gristmill_worker.attention.compiled import CompiledAttention
from gristmill_worker.engine.base import NOTHING
from gristmill_worker.engine.block_manager import BlockManager
from gristmill_worker.engine.forward_batch import build_forward_batch
from gristmill_worker.engine.kv_cache import KVCache
from gristmill_worker.engine.model_runner import ModelRunner
from gristmill_worker.engine.scheduler import Scheduler
from gristmill_worker.engine.sequence import Sequence
from gristmill_worker.models.loader import LoadedModel, load_model
from gristmill_worker.models.packing import Packing, choose_packing

BLOCK_SIZE = 16
#: Prompt lengths: around the edges of Blocks, and one that crosses most sliding windows in part.
_LENGTHS = (1, 7, 15, 16, 17, 33, 70, 600)
_NUM_GENERATED = 8
_MAX_BATCHED_TOKENS = 48
#: Largest difference of a logit, as a share of the row's largest: rounding stays far below, one
#: wrong key lies far above.
_TOLERANCE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What was found. `largest_difference` is a share of the largest logit of its row."""

    num_rows: int
    num_tokens: int
    largest_difference: float
    tolerance: float
    num_equal_ids: int
    num_tied_ids: int
    num_wrong_ids: int
    is_bit_stable: bool
    largest_instability: float
    path_taken: str
    kv_bytes_per_token: int
    max_model_len: int

    @property
    def is_exact(self) -> bool:
        return self.num_wrong_ids == 0 and self.largest_difference <= self.tolerance

    def lines(self) -> list[str]:
        """The findings in plain words."""
        num_ids = self.num_equal_ids + self.num_tied_ids + self.num_wrong_ids
        verdict = "exact" if self.is_exact else "NOT EXACT: do not use this model here"
        stable = "the same bits alone and in company"
        if not self.is_bit_stable:
            stable = (
                f"not the same bits alone and in company: logits differ by up to "
                f"{self.largest_instability:.1e} of the largest"
            )
        tied = f" ({self.num_tied_ids} more are ties within the tolerance)"
        return [
            f"verdict          {verdict}",
            f"compared         {self.num_rows} rows, {self.num_tokens} tokens, packed in mixed "
            "steps and each alone",
            f"logits           differ by up to {self.largest_difference:.1e} of the largest "
            f"(tolerance {self.tolerance:.0e})",
            f"greedy ids       {self.num_equal_ids} of {num_ids} equal"
            + (tied if self.num_tied_ids else ""),
            f"bit stability    {stable}",
            f"path             {self.path_taken}",
            f"KV cache         {self.kv_bytes_per_token:,} bytes a token",
            f"longest row      {self.max_model_len:,} tokens",
        ]


@dataclass(slots=True)
class _Answer:
    """A row's tokens and the logits [n, vocab_size] that its n generated ones were picked from."""

    token_ids: list[int]
    logits: list[torch.Tensor] = field(default_factory=list)


def check_model(path: Path, *, cache_dir: Path, dtype: str = "float32") -> CheckReport:
    """Load the folder as a worker would and compare. Raises ModelUnsupported when it is refused."""
    loaded = load_model(path, dtype=dtype, cache_dir=cache_dir)
    parameter = next(loaded.model.parameters())
    attention = choose_attention(
        dtype=parameter.dtype,
        device=parameter.device,
        block_size=BLOCK_SIZE,
        cache_dir=cache_dir / "kernels",
    )
    prompts = _prompts(loaded)
    together = _answer(loaded, attention, prompts)
    alone = [_answer(loaded, attention, [prompt])[0] for prompt in prompts]
    instability = max(
        _difference(torch.stack(one.logits), torch.stack(other.logits))
        for one, other in zip(together, alone, strict=True)
    )
    packing = choose_packing(parameter.dtype, parameter.device, cache_dir / "kernels")
    facts = (_path_taken(attention, packing), loaded.kv_bytes_per_token, loaded.max_model_len)
    del loaded, parameter  # the weights, before they are loaded a second time
    gc.collect()
    return _compare(path, dtype, prompts, together, instability, *facts)


def _path_taken(attention: AttentionBackend, packing: Packing | None) -> str:
    is_compiled = isinstance(attention, CompiledAttention)
    return f"{'compiled attention' if is_compiled else 'reference attention in plain torch'}, " + (
        "plain linear layers" if packing is None else f"linear layers packed for {packing.name}"
    )


def _prompts(loaded: LoadedModel) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    longest = max(1, loaded.max_model_len - _NUM_GENERATED)
    lengths = sorted({min(length, longest) for length in _LENGTHS})
    return [
        torch.randint(0, loaded.vocab_size, (length,), generator=generator).tolist()
        for length in lengths
    ]


@torch.inference_mode()
def _answer(
    loaded: LoadedModel, attention: AttentionBackend, prompts: Rows[list[int]]
) -> list[_Answer]:
    """Greedy answers of all rows, computed in the same steps by the Engine's own parts."""
    num_blocks = sum(-(-(len(p) + _NUM_GENERATED) // BLOCK_SIZE) for p in prompts)
    parameter = next(loaded.model.parameters())
    device = parameter.device
    cache = KVCache(loaded.layers, num_blocks, BLOCK_SIZE, dtype=parameter.dtype, device=device)
    runner = ModelRunner(loaded.model, cache, attention)
    scheduler = Scheduler(
        BlockManager(num_blocks, BLOCK_SIZE),
        max_num_seqs=len(prompts),
        max_num_batched_tokens=_MAX_BATCHED_TOKENS,
        expected_output_tokens=_NUM_GENERATED,
    )
    params = SamplingParams(_NUM_GENERATED, temperature=0.0, ignore_eos=True)
    seqs = [
        Sequence(str(i), Job((Row(i, str(i)),), (Prompt(tuple(prompt)),), params), i, NOTHING)
        for i, prompt in enumerate(prompts)
    ]
    answers = [_Answer(seq.token_ids) for seq in seqs]
    for seq in seqs:
        scheduler.add(seq)
    while scheduler.running or scheduler.waiting:
        plan = scheduler.schedule()
        logits = runner.run(build_forward_batch(plan.scheduled, BLOCK_SIZE, device))
        scheduler.advance(plan)
        at_end = [item.seq for item in plan.scheduled if not item.seq.num_uncomputed_tokens]
        for seq, row in zip(at_end, logits, strict=True):
            seq.token_ids.append(int(row.argmax()))
            answers[seq.arrival].logits.append(row.clone())
        scheduler.finish([s for s in at_end if s.num_generated_tokens == _NUM_GENERATED])
    return answers


@torch.inference_mode()
def _compare(
    path: Path,
    dtype: str,
    prompts: Rows[list[int]],
    answers: Rows[_Answer],
    instability: float,
    path_taken: str,
    kv_bytes_per_token: int,
    max_model_len: int,
) -> CheckReport:
    """Every answer against the logits that plain transformers has for its tokens, row by row."""
    model = AutoModelForCausalLM.from_pretrained(
        path,
        dtype=getattr(torch, dtype),
        attn_implementation="eager",
        use_safetensors=True,
        trust_remote_code=False,
    ).eval()
    largest, equal, tied = 0.0, 0, 0
    num_tokens = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([answer.token_ids[:-1]])
        theirs = model(ids, use_cache=False).logits[0, len(prompt) - 1 :].float()
        ours = torch.stack(answer.logits)
        largest = max(largest, _difference(ours, theirs))
        picked = torch.tensor(answer.token_ids[len(prompt) :])
        num_tokens += len(answer.token_ids)
        margin = theirs.max(-1).values - theirs.gather(1, picked[:, None])[:, 0]
        is_equal = theirs.argmax(-1) == picked
        is_tied = ~is_equal & (margin <= _TOLERANCE[dtype] * theirs.abs().max())
        equal, tied = equal + int(is_equal.sum()), tied + int(is_tied.sum())
    num_ids = len(prompts) * _NUM_GENERATED
    return CheckReport(
        num_rows=len(prompts),
        num_tokens=num_tokens,
        largest_difference=largest,
        tolerance=_TOLERANCE[dtype],
        num_equal_ids=equal,
        num_tied_ids=tied,
        num_wrong_ids=num_ids - equal - tied,
        is_bit_stable=instability == 0.0,
        largest_instability=instability,
        path_taken=path_taken,
        kv_bytes_per_token=kv_bytes_per_token,
        max_model_len=max_model_len,
    )


def _difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Largest difference as a share of the largest logit; infinite where there is NaN."""
    difference = float((ours - theirs).abs().max()) / max(float(theirs.abs().max()), 1e-30)
    return difference if difference == difference else float("inf")
