"""Compares an encoder as the Worker runs it with the same model alone in transformers.

Prompts of several lengths are packed into one step, and computed each alone. Then plain
transformers has each of them, eagerly.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel

from gristmill_worker.models.encoder import TOLERANCE, load_encoder

_LENGTHS = (1, 2, 15, 16, 17, 64, 130, 400)


@dataclass(frozen=True, slots=True)
class EncoderReport:
    """What was found. Differences are a share of the largest hidden state."""

    num_tokens: int
    largest_difference: float
    tolerance: float
    largest_instability: float
    hidden_size: int
    max_model_len: int

    @property
    def is_exact(self) -> bool:
        return self.largest_difference <= self.tolerance

    def lines(self) -> list[str]:
        """The findings in plain words."""
        verdict = "exact" if self.is_exact else "NOT EXACT: do not use this model here"
        stable = "the same bits alone and in company"
        if self.largest_instability:
            stable = (
                "not the same bits alone and in company: states differ by up to "
                f"{self.largest_instability:.1e} of the largest"
            )
        return [
            f"verdict          {verdict}",
            f"compared         {len(_LENGTHS)} prompts, {self.num_tokens} tokens, packed in one "
            "step and each alone",
            f"hidden states    differ by up to {self.largest_difference:.1e} of the largest "
            f"(tolerance {self.tolerance:.0e})",
            f"bit stability    {stable}",
            f"vectors          {self.hidden_size} numbers",
            f"longest input    {self.max_model_len:,} tokens",
        ]


@torch.inference_mode()
def check_encoder(path: Path, *, cache_dir: Path, dtype: str = "float32") -> EncoderReport:
    """Load the folder as a worker would and compare. Raises ModelUnsupported when it is refused."""
    loaded = load_encoder(path, dtype=dtype, cache_dir=cache_dir)
    generator = torch.Generator().manual_seed(1)
    lengths = [min(length, loaded.max_model_len) for length in _LENGTHS]
    # Ids from the middle of the vocabulary: padding and the like lie at its ends.
    low, high = loaded.vocab_size // 4, max(loaded.vocab_size // 4 + 1, loaded.vocab_size // 2)
    prompts = [torch.randint(low, high, (n,), generator=generator).tolist() for n in lengths]
    together = loaded.hidden_states(prompts).float()
    alone = torch.cat([loaded.hidden_states([prompt]) for prompt in prompts]).float()
    max_model_len = loaded.max_model_len
    del loaded  # the weights, before they are loaded a second time
    gc.collect()
    model: Any = AutoModel.from_pretrained(
        path,
        dtype=getattr(torch, dtype),
        attn_implementation="eager",
        use_safetensors=True,
        trust_remote_code=False,
    ).eval()
    theirs = torch.cat([model(torch.tensor([p])).last_hidden_state[0] for p in prompts]).float()
    largest = float(theirs.abs().max().clamp_min(1e-30))
    return EncoderReport(
        num_tokens=sum(lengths),
        largest_difference=float((together - theirs).abs().max()) / largest,
        tolerance=TOLERANCE[getattr(torch, dtype)],
        largest_instability=float((together - alone).abs().max()) / largest,
        hidden_size=theirs.shape[1],
        max_model_len=max_model_len,
    )
