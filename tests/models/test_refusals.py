"""A model that the Engine cannot run exactly is refused before its weights are read (rules 1-9)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny import ARCHITECTURES, make_model, save_folder

from gristmill.errors import ModelUnsupported
from gristmill_worker.models import hook
from gristmill_worker.models.loader import load_model
from gristmill_worker.models.probe import LayerSpec, probe

_SMALL = {"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 99}


def refusal(config: Any, model_class: Any = None, max_model_len: int = 64) -> str:
    model_class = model_class or transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    with pytest.raises(ModelUnsupported) as raised:
        probe(model_class, config, max_model_len=max_model_len)
    return str(raised.value)


@pytest.mark.parametrize(
    ("rule", "config_class", "arguments"),
    [
        (1, "XGLMConfig", {"d_model": 64, "num_layers": 2, "attention_heads": 4, "vocab_size": 99}),
        (8, "BloomConfig", {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 99}),
        (3, "LlamaConfig", {**_SMALL, "layer_types": ["chunked_attention"] * 2}),
        (3, "Qwen3NextConfig", {**_SMALL, "num_hidden_layers": 4}),
        (4, "DogeConfig", {**_SMALL, "num_hidden_layers": 2, "intermediate_size": 64}),
        (6, "BertConfig", {**_SMALL, "num_hidden_layers": 2, "is_decoder": False}),
    ],
)
def test_architectures_that_cannot_be_run_exactly_are_refused(
    rule: int, config_class: str, arguments: dict[str, Any]
) -> None:
    config = getattr(transformers, config_class)(**{"num_hidden_layers": 2, **arguments})

    message = refusal(config)

    assert f"(rule {rule})" in message
    assert "README.md#models" in message


def _llama_with(**extra: Any) -> Any:
    """A Llama class whose attention gets more arguments, as a foreign architecture's would."""

    class Extra(transformers.LlamaForCausalLM):
        def forward(
            self,
            input_ids: Any = None,
            position_ids: Any = None,
            logits_to_keep: Any = 0,
            **kw: Any,
        ) -> Any:
            return super().forward(
                input_ids, position_ids=position_ids, logits_to_keep=logits_to_keep, **kw, **extra
            )

    return Extra


_LLAMA = {**ARCHITECTURES["llama"][1]}


def test_rule_2_layers_without_attention_are_refused() -> None:
    class Half(transformers.LlamaForCausalLM):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.model.layers = self.model.layers[:1]

    assert "(rule 2)" in refusal(transformers.LlamaConfig(**_LLAMA), Half)


def test_rule_5_a_bias_by_position_is_refused() -> None:
    message = refusal(transformers.LlamaConfig(**_LLAMA), _llama_with(position_bias=1.0))
    assert "(rule 5)" in message


def test_rule_6_attention_that_is_not_causal_is_refused() -> None:
    class Both(transformers.LlamaForCausalLM):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            for layer in self.model.layers:
                layer.self_attn.is_causal = False

    assert "(rule 6)" in refusal(transformers.LlamaConfig(**_LLAMA), Both)


def test_rule_7_an_unknown_argument_is_refused_by_name() -> None:
    message = refusal(transformers.LlamaConfig(**_LLAMA), _llama_with(block_indices=[1]))
    assert "(rule 7)" in message and "block_indices" in message


def test_rule_8_a_model_without_position_ids_is_refused() -> None:
    class Blind(transformers.LlamaForCausalLM):
        def forward(self, input_ids: Any = None, logits_to_keep: Any = 0, **kw: Any) -> Any:
            raise AssertionError("never reached")

    assert "(rule 8)" in refusal(transformers.LlamaConfig(**_LLAMA), Blind)


@pytest.mark.parametrize("rope_type", ["longrope", "dynamic"])
def test_rule_9_names_the_length_up_to_which_the_model_is_exact(rope_type: str) -> None:
    rope = {"rope_type": rope_type, "rope_theta": 1e4, "factor": 4.0}
    if rope_type == "longrope":
        rope |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
        rope |= {"original_max_position_embeddings": 32}
    config = transformers.LlamaConfig(**{**_LLAMA, "rope_parameters": rope})
    limit = 32 if rope_type == "longrope" else 256

    message = refusal(config, max_model_len=limit + 1)

    assert "(rule 9)" in message and f"--max-model-len {limit}" in message
    assert probe(transformers.LlamaForCausalLM, config, max_model_len=limit)


def test_layers_that_share_keys_are_found_by_the_tensor_they_pass() -> None:
    class Shared(transformers.LlamaForCausalLM):
        def forward(
            self,
            input_ids: Any = None,
            position_ids: Any = None,
            logits_to_keep: Any = 0,
            **kw: Any,
        ) -> Any:
            module = self.model.layers[0].self_attn
            query = torch.zeros(1, 4, 3, 16, device="meta")
            keys = [torch.zeros(1, 2, 3, 16, device="meta") for _ in range(2)]
            for n in (0, 1, 0):
                hook.attention(module, query, keys[n], keys[n], None)
            return None

    specs = probe(Shared, transformers.LlamaConfig(**_LLAMA), max_model_len=64)

    own = LayerSpec(2, 16, 16)
    assert specs == (own, own, LayerSpec(2, 16, 16, shares=0))
    assert sum(spec.bytes_per_token(4) for spec in specs) == 2 * 2 * 32 * 4


def test_a_folder_is_loaded_with_its_window_and_end_tokens(tmp_path: Path) -> None:
    path = save_folder(tmp_path, make_model("gpt2"))
    generation = json.loads((path / "generation_config.json").read_text())
    (path / "generation_config.json").write_text(
        json.dumps({**generation, "eos_token_id": [2, 5], "temperature": 0.6})
    )

    loaded = load_model(path)

    assert loaded.max_model_len == 256 and loaded.vocab_size == 199
    assert loaded.eos_token_ids == {2, 5}
    assert loaded.kv_bytes_per_token == 2 * 2 * 64 * 4
    assert load_model(path, max_model_len=1000).max_model_len == 256
    assert load_model(path, max_model_len=100).max_model_len == 100


def test_a_model_that_is_no_causal_language_model_is_refused(tmp_path: Path) -> None:
    transformers.T5Config(num_layers=1).save_pretrained(tmp_path)

    with pytest.raises(ModelUnsupported, match="no causal language model"):
        load_model(tmp_path)


def test_code_that_comes_with_a_model_is_never_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}})
    )
    (tmp_path / "own.py").write_text("raise SystemExit('the code of a model was run')")

    with pytest.raises(ModelUnsupported, match="own code are never run"):
        load_model(tmp_path)


def test_rule_3_a_window_that_attention_is_not_told_of_is_refused() -> None:
    """Qwen2-MoE keeps the window of its layers in the mask alone, and no mask is built."""
    layer_types = ["sliding_attention", "full_attention"]
    config = transformers.Qwen2MoeConfig(
        **_SMALL, num_hidden_layers=2, layer_types=layer_types, use_sliding_window=True
    )

    message = refusal(config)

    assert "(rule 3)" in message and "0 of 1 layers" in message


@pytest.mark.parametrize("config_class", ["RobertaConfig", "XLMRobertaXLConfig"])
def test_rule_8_positions_that_begin_after_the_padding_id_are_refused(config_class: str) -> None:
    config = getattr(transformers, config_class)(**_SMALL, num_hidden_layers=2, is_decoder=True)

    assert "(rule 8)" in refusal(config)


def test_keys_that_are_shared_with_other_values_are_kept_twice() -> None:
    """DiffLlama attends twice in a layer: the same keys, other values."""
    config = transformers.DiffLlamaConfig(**_LLAMA)

    specs = probe(transformers.DiffLlamaForCausalLM, config, max_model_len=64)

    assert len(specs) == 4 and all(spec.shares is None for spec in specs)


def test_a_padding_id_does_not_make_a_model_unsupported() -> None:
    config = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=99, pad_token_id=0)

    assert len(probe(transformers.GPT2LMHeadModel, config, max_model_len=64)) == 2


def test_a_folder_that_lacks_a_weight_is_refused(tmp_path: Path) -> None:
    path = save_folder(tmp_path, make_model("llama"))
    weights = load_file(path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(ModelUnsupported, match=r"lacks 1 of the weights .*up_proj"):
        load_model(path)
