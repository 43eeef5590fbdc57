"""Finds out before loading whether the Engine can run an architecture exactly (fail closed).

The model is built without memory (device `meta`), three tokens go through it, and every attention
call is recorded. What the calls show decides; no model is known by name. The rules are numbered as
in the README's section on models. A numeric test could not replace them: a model that passes sparse
block indices, say, is exact on short inputs and wrong on long ones.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedConfig

from gristmill.errors import ModelUnsupported
from gristmill_worker.models.hook import ATTENTION, AttentionCall, ForwardContext, forward_context

_KNOWN_LAYER_TYPES = {"full_attention", "sliding_attention"}
#: Shapes do not depend on it, and grouped matrix products on `meta` take no other.
_PROBE_DTYPE = torch.bfloat16
_ROPE_OF_WHOLE_BATCH = {"longrope", "dynamic"}
#: Arguments that reach attention functions and change nothing in them.
_HARMLESS = {
    "position_ids",
    "use_cache",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "return_dict",
    "cache_position",
    "is_causal",
    "deterministic",
}
_WITHOUT = {
    "position_ids": "takes no position_ids, so packed Sequences would get wrong positions",
    "logits_to_keep": "takes no logits_to_keep, so a step would compute logits of every token",
}
_WAY_OUT = (
    "Supported are decoder-only models, and encoders for embeddings, whose attention goes through "
    "transformers' AttentionInterface; see README.md#models. Another engine may run it."
)


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """KV cache of one attention call. `shares` is the earlier call whose keys it reads as well."""

    num_kv_heads: int
    k_dim: int
    v_dim: int
    shares: int | None = None

    def bytes_per_token(self, itemsize: int) -> int:
        if self.shares is not None:
            return 0
        return self.num_kv_heads * (self.k_dim + self.v_dim) * itemsize


def probe(
    model_class: type[Any], config: PreTrainedConfig, *, max_model_len: int
) -> tuple[LayerSpec, ...]:
    """The KV cache that each attention call needs, in the order of the calls.

    Raises ModelUnsupported with the number of the rule, what was seen, and the way out.
    """
    name = model_class.__name__
    needed = ("position_ids", "logits_to_keep")
    recorder, position_tables = _probe(model_class, config, max_model_len, needed)
    for call in recorder.calls:
        if not is_causal(call):
            raise _unsupported(name, 6, "is not causal: tokens look at what comes after them")
    if any(table.padding_idx is not None for table in position_tables):
        raise _unsupported(name, 8, "counts positions from the id of its padding, not from 0")
    return recorder.layer_specs()


def probe_encoder(model_class: type[Any], config: PreTrainedConfig, *, max_model_len: int) -> int:
    """The position of the first token, of a model that reads whole prompts without a cache.

    It may look at what comes after a token, and count positions from its padding id (RoBERTa).
    Raises ModelUnsupported as `probe` does.
    """
    _, position_tables = _probe(model_class, config, max_model_len, ("position_ids",))
    first = [t.padding_idx + 1 for t in position_tables if t.padding_idx is not None]
    return max(first, default=0)


def is_causal(call: AttentionCall) -> bool:
    """Whether a token sees only itself and what stands before it."""
    says = call.extra.get("is_causal", True) is not False
    return getattr(call.module, "is_causal", None) is True and says


def _probe(
    model_class: type[Any],
    config: PreTrainedConfig,
    max_model_len: int,
    needed_arguments: tuple[str, ...],
) -> tuple[CallRecorder, list[torch.nn.Embedding]]:
    """What a dry forward pass shows, checked by the rules that all models must keep."""
    name = model_class.__name__
    text_config = config.get_text_config()
    _check_layer_types(name, text_config)
    _check_signature(name, model_class, needed_arguments)
    _check_rope(name, text_config, max_model_len)
    recorder, position_tables = _record(name, model_class, config)
    _check_calls(name, text_config, recorder.calls)
    _check_windows(name, text_config, recorder.calls)
    return recorder, position_tables


class CallRecorder:
    """A ForwardContext that keeps the calls and answers with numbers of the right shape."""

    def __init__(self) -> None:
        self.calls: list[AttentionCall] = []

    def attend(self, call: AttentionCall) -> torch.Tensor:
        self.calls.append(call)  # also keeps the tensors alive, so that `is` can be trusted
        batch, num_heads, num_tokens, _ = call.query.shape
        return call.query.new_zeros(batch, num_tokens, num_heads, call.value.shape[-1])

    def layer_specs(self) -> tuple[LayerSpec, ...]:
        specs: list[LayerSpec] = []
        for n, call in enumerate(self.calls):
            # Layers that share keys and values are handed the very same tensor objects. Both must
            # be: DiffLlama attends twice with the same keys and other values.
            shares = next((m for m in range(n) if _same_kv(self.calls[m], call)), None)
            _, num_kv_heads, _, k_dim = call.key.shape
            specs.append(LayerSpec(num_kv_heads, k_dim, call.value.shape[-1], shares))
        return tuple(specs)


def _same_kv(one: AttentionCall, other: AttentionCall) -> bool:
    return one.key is other.key and one.value is other.value


@torch.inference_mode()
def run_three_tokens(model: Any, context: ForwardContext, *, num_logits: int | None = None) -> None:
    """The smallest forward pass that shows how a model calls its parts.

    With `num_logits` only so many of the last tokens go on to its head, as in a step.
    """
    more = {} if num_logits is None else {"logits_to_keep": num_logits}
    with forward_context(context):
        model(
            input_ids=torch.zeros(1, 3, dtype=torch.long, device=model.device),
            position_ids=torch.arange(3, device=model.device)[None],
            use_cache=False,
            **more,
        )


def forget_pad_token(model: Any) -> None:
    """GPT-2 and its like look for pad_token_id among the ids of each forward pass, for a warning.

    That reads the value of a tensor, which waits for a GPU and which `meta` cannot do. It is set
    past the checks of the configuration: Emu3, for one, insists on an int.
    """
    object.__setattr__(model.config, "pad_token_id", None)


def _record(
    name: str, model_class: type[Any], config: PreTrainedConfig
) -> tuple[CallRecorder, list[torch.nn.Embedding]]:
    recorder = CallRecorder()
    config = type(config).from_dict(config.to_dict())
    config._attn_implementation = ATTENTION
    for rope in _rope_parameters(config.get_text_config()):
        # Within the length that rule 9 allows the two are the same, and the code of "dynamic"
        # reads the value of a tensor, which tensors on `meta` do not have.
        if rope.get("rope_type") == "dynamic":
            rope["rope_type"] = "default"
    try:
        with torch.device("meta"):
            model = model_class._from_config(
                config, dtype=_PROBE_DTYPE, attn_implementation=ATTENTION
            )
        forget_pad_token(model)
        position_tables = _watch_position_tables(model)
        run_three_tokens(model.eval(), recorder)
    except Exception as error:  # whatever a foreign model raises means that it cannot be run here
        raise _unsupported(
            name, 1, f"cannot be run through the attention hook ({error})"
        ) from error
    return recorder, position_tables


def _watch_position_tables(model: torch.nn.Module) -> list[torch.nn.Embedding]:
    """The embeddings that will be asked for position_ids as they were given.

    RoBERTa and its like begin at padding_idx + 1, and do so only when they are given none.
    """
    asked: list[torch.nn.Embedding] = []
    positions: list[torch.Tensor] = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: positions.append(kwargs["position_ids"]), with_kwargs=True
    )

    def note(module: torch.nn.Embedding, args: tuple[torch.Tensor, ...]) -> None:
        if args and args[0] is positions[0]:
            asked.append(module)

    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            module.register_forward_pre_hook(note)
    return asked


def _check_layer_types(name: str, config: PreTrainedConfig) -> None:
    unknown = set(getattr(config, "layer_types", None) or ()) - _KNOWN_LAYER_TYPES
    if unknown:
        raise _unsupported(
            name, 3, f"has layers of a type that keeps other state than keys: {sorted(unknown)}"
        )


def _check_signature(name: str, model_class: type[Any], needed: tuple[str, ...]) -> None:
    parameters = inspect.signature(model_class.forward).parameters
    missing = [argument for argument in needed if argument not in parameters]
    if missing:
        raise _unsupported(name, 8, _WITHOUT[missing[0]])


def _check_rope(name: str, config: PreTrainedConfig, max_model_len: int) -> None:
    for rope in _rope_parameters(config):
        if rope.get("rope_type") not in _ROPE_OF_WHOLE_BATCH:
            continue
        original = rope.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        limit = original or getattr(config, "max_position_embeddings", None)
        if limit is not None and max_model_len > limit:
            raise ModelUnsupported(
                f"{name} (rule 9): its {rope['rope_type']} positions change for all rows of a "
                f"batch when one row is longer than {limit} tokens, and max_model_len is "
                f"{max_model_len}. Set --max-model-len {limit} or lower."
            )


def _rope_parameters(config: PreTrainedConfig) -> list[dict[str, Any]]:
    """The rotary settings of a config: one dict, or one for each layer type."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    nested = [value for value in rope.values() if isinstance(value, dict)]
    return nested or [rope]


def _check_calls(name: str, config: PreTrainedConfig, calls: list[AttentionCall]) -> None:
    if not calls:
        raise _unsupported(name, 1, "never calls the attention hook")
    if len(calls) < config.num_hidden_layers:
        raise _unsupported(
            name, 2, f"calls attention {len(calls)} times in {config.num_hidden_layers} layers"
        )
    for call in calls:
        if call.attention_mask is not None:
            raise _unsupported(
                name, 4, "computes its own attention mask, which a packed batch cannot honour"
            )
        if call.extra.get("position_bias") is not None:
            raise _unsupported(name, 5, "adds a bias by relative position")
        unknown = {key for key, value in call.extra.items() if value is not None} - _HARMLESS
        if unknown:
            raise _unsupported(
                name, 7, f"passes arguments to attention that are not known: {sorted(unknown)}"
            )


def _check_windows(name: str, config: PreTrainedConfig, calls: list[AttentionCall]) -> None:
    """A window that lives in the mask alone is lost, for no mask is built (Qwen2-MoE does so)."""
    expected = list(getattr(config, "layer_types", None) or ()).count("sliding_attention")
    found = sum(1 for call in calls if call.rules.sliding_window is not None)
    if found < expected:
        raise _unsupported(
            name, 3, f"tells attention of a sliding window in {found} of {expected} layers"
        )


def _unsupported(name: str, rule: int, why: str) -> ModelUnsupported:
    return ModelUnsupported(f"{name} (rule {rule}): it {why}. {_WAY_OUT}")
