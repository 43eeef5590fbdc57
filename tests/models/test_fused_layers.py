"""Layers that run as one call of C: the same bits as one by one, and left alone where they do more
than that call could."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from packed import Piece, as_engine_takes_it, logits_packed, random_steps
from shrink import make_oracle
from test_bits import ACCEPTED
from tiny import VOCAB_SIZE, load_row_kernels, prompts
from torch import nn

from gristmill_worker.attention.compiled import CompiledAttention, load_kernel
from gristmill_worker.engine.fused_layers import FusedLayers
from gristmill_worker.engine.kv_cache import KVCache
from gristmill_worker.engine.model_runner import ModelRunner
from gristmill_worker.models.loader import LoadedModel
from gristmill_worker.models.program import Program

pytestmark = pytest.mark.skipif(load_row_kernels() is None, reason="needs a C compiler")

CPU = torch.device("cpu")
#: Architecture -> the classes of modules that begin a program, and how many each replaces.
FOUND: dict[str, list[tuple[str, int]]] = {
    "llama": [("LlamaDecoderLayer", 4)],
    "qwen2": [("Qwen2DecoderLayer", 4)],  # biases, windows
    "qwen3": [("Qwen3DecoderLayer", 4)],  # norms of queries and keys
    "mistral": [("MistralDecoderLayer", 4)],
    "gemma2": [("Gemma2DecoderLayer", 4)],  # norms behind products, soft caps
    # Windowed and full layers are rotated by other angles.
    "gemma3_text": [("Gemma3DecoderLayer", 1)] * 4,
    "smollm3": [("SmolLM3DecoderLayer", 4)],  # layers without positions
    "mixtral": [("MixtralAttention", 1)] * 4,  # experts are chosen by value
    "gpt2": [("GPT2Attention", 1)] * 4,  # layer norms
    "gpt_oss": [],  # rotates in another way
    "cohere": [],
    "diffllama": [],
}


#: Those of which the last layer computes only the rows that are asked about.
NARROW = {"llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "smollm3"}


class OneByOne:
    """Compiled attention behind a name that no program is made for."""

    def __init__(self, compiled: CompiledAttention) -> None:
        self.forward = compiled.forward


def fused_layers(loaded: LoadedModel, attention: Any) -> FusedLayers | None:
    cache = KVCache(loaded.layers, 4, 16, dtype=torch.float32, device=CPU)
    return ModelRunner(loaded.model, cache, attention)._layers


def what_was_found(layers: FusedLayers | None) -> list[tuple[str, int]]:
    stretches = [] if layers is None else layers.stretches
    return [(type(s.first).__name__, 1 + len(s.others)) for s in stretches]


def check_bits(loaded: LoadedModel, compiled: CompiledAttention, seed: int = 0) -> None:
    rows = prompts([1, 14, 33, 50], seed=seed)
    rows = [[token % 90 for token in row] for row in rows]
    steps = random_steps([len(row) for row in rows], seed)

    expected = logits_packed(loaded, OneByOne(compiled), rows, steps, block_size=16)
    found = logits_packed(loaded, compiled, rows, steps, block_size=16)
    last = logits_packed(loaded, compiled, rows, steps, block_size=16, num_asked=some_of)

    asked: list[list[torch.Tensor]] = [[] for _ in rows]
    for piece in itertools.chain(*steps):
        asked[piece.row].append(expected[piece.row][piece.end - some_of(piece) : piece.end])
    for one, two, all_rows, some in zip(found, last, expected, asked, strict=True):
        assert torch.equal(one, all_rows)
        assert torch.equal(two, torch.cat(some))


def some_of(piece: Piece) -> int:
    """From none to all of a piece's tokens."""
    return piece.end * 7 % (piece.end - piece.begin + 1)


@pytest.mark.parametrize("name", FOUND)
def test_fused_layers_have_the_bits_of_layers_one_by_one(
    name: str, compiled: CompiledAttention
) -> None:
    loaded = as_engine_takes_it(make_oracle(name), packed=True)

    layers = fused_layers(loaded, compiled)

    assert what_was_found(layers) == FOUND[name]
    assert (layers is not None and layers.can_narrow) == (name in NARROW)
    check_bits(loaded, compiled)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ACCEPTED if name not in FOUND])
def test_every_architecture_has_the_bits_of_its_layers_one_by_one(
    name: str, compiled: CompiledAttention
) -> None:
    check_bits(as_engine_takes_it(make_oracle(name), packed=True), compiled)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_bits_hold_for_wide_layers_with_biases_and_any_number_of_threads(
    num_threads: int, compiled: CompiledAttention
) -> None:
    config = transformers.LlamaConfig(
        hidden_size=80,
        intermediate_size=1601,  # deeper than one piece of a panel, and no whole vectors
        num_hidden_layers=2,
        num_attention_heads=5,
        num_key_value_heads=1,
        head_dim=16,
        vocab_size=VOCAB_SIZE,
        attention_bias=True,
        mlp_bias=True,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    loaded = as_engine_takes_it(model.eval().requires_grad_(False), packed=True)
    torch.set_num_threads(num_threads)
    try:
        assert what_was_found(fused_layers(loaded, compiled)) == [("LlamaDecoderLayer", 2)]
        for seed in range(3):
            check_bits(loaded, compiled, seed)
    finally:
        torch.set_num_threads(1)


def test_the_model_itself_stays_as_it_is(compiled: CompiledAttention) -> None:
    loaded = as_engine_takes_it(make_oracle("llama"), packed=True)
    before = [(module, set(vars(module))) for module in loaded.model.modules()]

    check_bits(loaded, compiled)

    assert [(module, set(vars(module))) for module in loaded.model.modules()] == before


def three_layers(meddle: Callable[[nn.ModuleList], None]) -> LoadedModel:
    oracle = make_oracle("llama")
    oracle.config.num_hidden_layers = 3
    del oracle.model.layers[3]
    loaded = as_engine_takes_it(oracle, packed=True)
    meddle(loaded.model.model.layers)  # type: ignore[union-attr, arg-type]
    return loaded


def around(layer: Any, change: Callable[[Any, Any], Any]) -> None:
    """Make `change(what the layer was given, what it gave)` its result."""
    plain = layer.forward
    layer.forward = lambda hidden, **kwargs: change(hidden, plain(hidden, **kwargs))


def scale(layers: nn.ModuleList) -> None:
    around(layers[1], lambda given, found: found * 2.0)


def look_at_values(layers: nn.ModuleList) -> None:
    around(layers[1], lambda given, found: found if found.sum() > 0 else given)


def change_in_place(layers: nn.ModuleList) -> None:
    around(layers[1], lambda given, found: found.add_(given))


def read_what_another_made(layers: nn.ModuleList) -> None:
    kept: list[torch.Tensor] = []
    plain = layers[0].mlp.down_proj.forward

    def keep(x: torch.Tensor) -> torch.Tensor:
        kept[:] = [plain(x)]
        return kept[0]

    layers[0].mlp.down_proj.forward = keep
    around(layers[2], lambda given, found: found + kept[0] * 2.0)


def give_two(layers: nn.ModuleList) -> None:
    around(layers[1], lambda given, found: (found, given))
    plain = layers[2].forward
    layers[2].forward = lambda hidden, **kwargs: plain(hidden[0], **kwargs)


def skip_one(layers: nn.ModuleList) -> None:
    """What the first layer gave is wanted by the third as well."""
    kept: list[torch.Tensor] = []
    layers[0].register_forward_hook(lambda module, args, found: kept.append(found))
    layers[2].register_forward_hook(lambda module, args, found: found + kept.pop() * 2.0)


def call_twice(layers: nn.ModuleList) -> None:
    layers[2] = layers[1]


def take_an_object(layers: nn.ModuleList) -> None:
    layers[1].register_forward_pre_hook(
        lambda module, args, kwargs: (args, {**kwargs, "notes": {}}), with_kwargs=True
    )


LAYER, ATTENTION = "LlamaDecoderLayer", "LlamaAttention"


@pytest.mark.parametrize(
    ("meddle", "found"),
    [
        (lambda layers: None, [(LAYER, 3)]),
        (scale, [(LAYER, 1), (ATTENTION, 1), (LAYER, 1)]),
        (look_at_values, [(LAYER, 1), (ATTENTION, 1), (LAYER, 1)]),
        (change_in_place, [(LAYER, 1), (ATTENTION, 1), (LAYER, 1)]),
        (read_what_another_made, [(ATTENTION, 1), (LAYER, 1), (ATTENTION, 1)]),
        (give_two, [(LAYER, 1), (ATTENTION, 1), (LAYER, 1)]),
        (skip_one, [(LAYER, 1), (LAYER, 1), (ATTENTION, 1)]),
        (call_twice, [(LAYER, 1)]),
        (take_an_object, [(LAYER, 1), (LAYER, 1)]),
    ],
)
def test_layers_that_do_more_are_left_alone(
    meddle: Callable[[nn.ModuleList], None], found: Any, compiled: CompiledAttention
) -> None:
    loaded = three_layers(meddle)

    assert what_was_found(fused_layers(loaded, compiled)) == found
    check_bits(loaded, compiled)


def test_all_rows_run_to_the_end_where_a_model_mixes_them_behind_its_layers(
    compiled: CompiledAttention,
) -> None:
    loaded = as_engine_takes_it(make_oracle("llama"), packed=True)
    norm = loaded.model.model.norm  # type: ignore[union-attr]
    norm.register_forward_hook(lambda module, args, found: found + found.flip(1))

    layers = fused_layers(loaded, compiled)

    assert what_was_found(layers) == FOUND["llama"]
    assert layers is not None and not layers.can_narrow
    check_bits(loaded, compiled)


def test_programs_that_give_other_bits_are_not_used(
    compiled: CompiledAttention, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = as_engine_takes_it(make_oracle("llama"), packed=True)
    monkeypatch.setattr(Program, "run", lambda *args: None)

    with caplog.at_level(logging.WARNING):
        assert fused_layers(loaded, compiled) is None

    assert "other bits" in caplog.text


def test_a_model_that_cannot_be_watched_runs_layer_by_layer(
    compiled: CompiledAttention, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = three_layers(lambda layers: None)
    fail = loaded.model.model.layers[1].register_forward_pre_hook(  # type: ignore[union-attr, index]
        lambda module, args: 1 / 0
    )

    with caplog.at_level(logging.WARNING):
        assert fused_layers(loaded, compiled) is None

    assert "division" in caplog.text
    fail.remove()
    check_bits(loaded, compiled)


def test_without_a_compiler_layers_run_one_by_one(
    compiled: CompiledAttention, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = as_engine_takes_it(make_oracle("llama"), packed=True)
    kernel = load_kernel(tmp_path)
    assert kernel is not None
    attention = CompiledAttention(kernel)
    monkeypatch.setenv("CC", "no-such-compiler")

    assert fused_layers(loaded, attention) is None
