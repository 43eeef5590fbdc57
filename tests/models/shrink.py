"""Shrinks the configuration of any architecture of transformers until it fits a test.

No architecture is known by name here: small values are given to the arguments that a configuration
has. What a few configurations demand beyond that stands in SPECIAL, by model type.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

VOCAB_SIZE = 96
WINDOW = 6
NUM_LAYERS = 4
#: Positions that a tiny model knows.
MAX_LEN = 128
_MAX_PARAMETERS = 20_000_000

#: model type -> name of its causal language model class.
ALL: dict[str, str] = dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)

_SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), NUM_LAYERS),
    **dict.fromkeys(("decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "intermediate_size_mlp"), 128),
    **dict.fromkeys(("decoder_ffn_dim", "encoder_ffn_dim"), 128),
    **dict.fromkeys(("n_positions", "n_ctx", "max_position_embeddings", "max_seq_len"), MAX_LEN),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCAB_SIZE),
    # Rows of whole vectors, as real models have them: see models/activation.py.
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), 32),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("n_group", "topk_group"), 1),
    **dict.fromkeys(("head_dim", "v_head_dim", "qk_nope_head_dim", "kv_lora_rank"), 16),
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "sliding_window": WINDOW,
    "attention_chunk_size": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "use_sliding_window": True,
    "rotary_dim": 8,
    "query_pre_attn_scalar": 16,
    "global_head_dim": 32,
    "hidden_size_per_layer_input": 32,
    "num_kv_shared_layers": 2,
    "laurel_rank": 8,
    "altup_num_inputs": 2,
}
#: Given also where the default is None.
_EVEN_IF_NONE = {
    *("sliding_window", "head_dim", "attention_chunk_size", "num_experts_per_tok"),
    "n_routed_experts",
}
_PER_LAYER = ("layer_types", "mlp_layer_types")
_OMIT = object()
_ROPE = {"rope_type": "default", "rope_theta": 1e4}
#: model type -> arguments that the rules of its configuration ask for.
SPECIAL: dict[str, dict[str, Any]] = {
    "bamba": {"layers_block_type": _OMIT, "attn_layer_indices": [1, 3]},
    "blt": {"encoder_hash_byte_group_vocab": 50, "encoder_hash_byte_group_size": [3, 4]},
    "blt_local_encoder": {"hidden_size_global": 64},
    "blt_local_decoder": {"hidden_size_global": 64},
    "cohere_compass_text": {"layer_types": ["sliding_attention", "full_attention"] * 2}
    | {"rope_parameters": {"sliding_attention": _ROPE, "full_attention": _ROPE}},
    "dbrx": {"attn_config": {"rope_theta": 1e4, "kv_n_heads": 2, "clip_qkv": 8.0}}
    | {"ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2}},
    "dots1": {"n_shared_experts": 1, "first_k_dense_replace": 1},
    "dots3_note_text": {"index_topk": 4, "index_head_dim": 16, "index_n_heads": 2}
    | {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_q_lora_rank": 32}
    | {"swa_kv_lora_rank": 16, "swa_head_dim": 24, "swa_qk_nope_head_dim": 16, "swa_v_head_dim": 16}
    | {"shared_experts_intermediate_size": 32, "first_k_dense_replace": 1},
    "dots3_note_audio_encoder": {"adapter_input_size": 64, "adapter_out_dim": 64},
    "dots3_note_vision_encoder": {"adapter_in_dim": 64, "adapter_out_dim": 64},
    "falcon_h1": {"mamba_n_heads": 16, "mamba_d_ssm": 128, "mamba_d_head": 8},
    "gemma4_text_assistant": {"hidden_size_per_layer_input": 0},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": WINDOW},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "longcat_flash": {"head_dim": 8},
    "mamba2": {"num_heads": 8},
    "minimax_m3_vl_text": {"layer_types": ["minimax_m3_sparse", "full_attention"] * 2},
    "nemotron": {"num_key_value_heads": 2},
    "qwen4_exp_text": {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16}
    | {"indexer_budget": 8, "indexer_compress_ratio": 4, "ngram_vocab_size_base": 100}
    | {"split_ngram_parts": 1, "hc_lowrank": 16},
    "recurrent_gemma": {"layers_block_type": _OMIT},
    "reformer": {"is_decoder": True, "axial_pos_shape": [8, 16], "axial_pos_embds_dim": [32, 32]},
    "xmod": {"default_language": "en_XX"},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
}


def make_config(model_type: str) -> Any:
    """The configuration of a tiny model. Raises whatever transformers does when it cannot be."""
    config = _shrink(CONFIG_MAPPING[model_type]())
    model_class = getattr(transformers, ALL[model_type])
    if model_class.config_class is type(config) or getattr(config, "text_config", None):
        return config
    parts = [getattr(config, name) for name in config.sub_configs]  # MusicGen's decoder
    return next((part for part in parts if type(part) is model_class.config_class), config)


def _shrink(config: Any) -> Any:
    arguments = _arguments(config)
    for name in getattr(config, "sub_configs", None) or ():
        part = getattr(config, name, None)
        if part is not None:
            arguments[name] = _shrink(part).to_dict()
    arguments |= SPECIAL.get(config.model_type, {})
    return type(config)(**{name: v for name, v in arguments.items() if v is not _OMIT})


def _arguments(config: Any) -> dict[str, Any]:
    chosen = {name: small for name, small in _SMALL.items() if _takes(config, name)}
    if getattr(config, "sliding_window", 0) is None and not hasattr(config, "layer_types"):
        del chosen["sliding_window"]
    if "kv_lora_rank" in chosen:  # latent attention decompresses to as many key heads as queries
        chosen["num_key_value_heads"] = 4
        chosen.pop("head_dim", None)
    for name in _PER_LAYER:
        kinds = list(dict.fromkeys(getattr(config, name, None) or ()))
        if kinds == ["full_attention"] and "sliding_window" in chosen:
            kinds.append("sliding_attention")
        if kinds and not _is_derived(config, name):
            chosen[name] = [kinds[i % len(kinds)] for i in range(NUM_LAYERS)]
    return chosen


def _takes(config: Any, name: str) -> bool:
    if _is_derived(config, name):
        return False
    try:
        value = getattr(config, name)
    except AttributeError:
        return False
    except Exception:  # some differ by layer, and transformers refuses to name one value
        return True
    return value is not None or name in _EVEN_IF_NONE


def _is_derived(config: Any, name: str) -> bool:
    name = config.attribute_map.get(name, name)
    return isinstance(inspect.getattr_static(type(config), name, None), property)


def make_oracle(model_type: str) -> Any:
    """A random model in float32 with the eager attention of transformers."""
    config = make_config(model_type)
    with torch.device("meta"):
        empty = _build(model_type, config)
    num_parameters = sum(parameter.numel() for parameter in empty.parameters())
    if num_parameters > _MAX_PARAMETERS:
        raise ValueError(f"{num_parameters:,} parameters even when shrunk")
    torch.manual_seed(7)
    model = _build(model_type, config)
    for parameter in model.parameters():
        if parameter.dim() >= 2:  # far larger than usual, so that greedy rows wander
            torch.nn.init.normal_(parameter, std=0.15)
        elif not parameter.abs().sum() or not parameter.isfinite().all():
            torch.nn.init.normal_(parameter, std=0.1)
    return model.float().eval().requires_grad_(False)


def _build(model_type: str, config: Any) -> Any:
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model_class = getattr(transformers, ALL[model_type])
    return model_class._from_config(config, attn_implementation="eager")
