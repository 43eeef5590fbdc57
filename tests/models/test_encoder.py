"""Models that read whole prompts: each prompt as transformers has it, and the same bits always."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModel
from typer.testing import CliRunner

from gristmill.errors import ModelUnsupported
from gristmill_worker.cli import app
from gristmill_worker.models.encoder import load_encoder

_COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 199,
    "max_position_embeddings": 256,
    "pad_token_id": 1,
}
_GROUPED = {"num_key_value_heads": 2, "head_dim": 16}

#: Families that differ in what could go wrong: positions, windows, causality, soft caps, heads.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "Bert": {},
    "XLMRoberta": {},
    "DistilBert": {"dim": 64, "n_layers": 3, "n_heads": 4, "hidden_dim": 128},
    "Electra": {"embedding_size": 64},
    "ModernBert": {"local_attention": 16, "global_attn_every_n_layers": 3},
    "NomicBert": {},
    "EuroBert": {"num_key_value_heads": 2},
    "Gemma3Text": {**_GROUPED, "use_bidirectional_attention": True, "sliding_window": 8},
    "Gemma2": {**_GROUPED, "sliding_window": 8},
    "Qwen3": _GROUPED,
}
LENGTHS = (1, 3, 17, 33, 120, 240)


def make_folder(folder: Path, name: str, **changes: Any) -> Any:
    """A folder with a random model of an architecture; the model itself is the oracle."""
    config = getattr(transformers, f"{name}Config")(**{**_COMMON, **changes})
    torch.manual_seed(0)
    model = AutoModel.from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        if parameter.dim() >= 2:  # larger than usual, so that what is wrong shows
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return model


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(3, 199, (n,), generator=generator).tolist() for n in LENGTHS]


@torch.inference_mode()
def states_alone(model: Any, prompt: list[int]) -> torch.Tensor:
    states: torch.Tensor = model(torch.tensor([prompt])).last_hidden_state[0]
    return states


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_packed_prompts_equal_each_alone_in_transformers(tmp_path: Path, name: str) -> None:
    oracle = make_folder(tmp_path, name, **ARCHITECTURES[name])
    loaded = load_encoder(tmp_path)

    together = loaded.hidden_states(prompts()).split(LENGTHS)

    for prompt, states in zip(prompts(), together, strict=True):
        expected = states_alone(oracle, prompt)
        assert (states - expected).abs().max() < 1e-5 * expected.abs().max()
        assert torch.equal(states, loaded.hidden_states([prompt]))


def test_positions_may_be_counted_from_the_padding_id(tmp_path: Path) -> None:
    make_folder(tmp_path, "XLMRoberta")

    loaded = load_encoder(tmp_path)

    assert loaded.first_position == 2
    assert loaded.max_model_len == 254


@pytest.mark.parametrize(
    ("name", "changes", "rule"),
    [
        ("MPNet", {}, "rule 1"),  # adds a bias by relative position, without the interface
        ("LayoutLM", {}, "rule 4"),
        ("RoFormer", {}, "rule 8"),
        ("MobileBert", {}, "differ by"),  # passes the probe, and the comparison finds it
    ],
)
def test_an_encoder_that_would_be_wrong_is_refused(
    tmp_path: Path, name: str, changes: dict[str, Any], rule: str
) -> None:
    make_folder(tmp_path, name, **changes)

    with pytest.raises(ModelUnsupported, match=rule):
        load_encoder(tmp_path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_check_model_takes_an_encoder_for_what_it_is(tmp_path: Path, dtype: str) -> None:
    make_folder(tmp_path, "Bert")

    done = CliRunner().invoke(app, ["check-model", str(tmp_path), "--dtype", dtype])

    assert done.exit_code == 0, done.output
    assert "verdict          exact" in done.output
    assert "vectors          64 numbers" in done.output
    if dtype == "float32":
        assert "the same bits alone and in company" in done.output


def test_check_model_says_why_an_encoder_is_refused(tmp_path: Path) -> None:
    make_folder(tmp_path, "MPNet")

    done = CliRunner().invoke(app, ["check-model", str(tmp_path)])

    assert done.exit_code == 1
    assert "refused" in done.output and "rule 1" in done.output
