"""What the configuration of a LoRA adapter says, as PEFT saves it; what cannot be run is refused.

Only the standard library is imported here: the control side refuses as the Worker does.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gristmill.errors import ModelNotFound, ModelUnsupported

_T = TypeVar("_T")

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
#: PEFT's word for every linear layer but the head.
_ALL_LINEAR = "all-linear"
#: What says nothing about the result, whatever it holds.
_HARMLESS = {
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "fan_in_fan_out",  # how the base's weights lie; what is added to its output is the same
    "inference_mode",
    "loftq_config",
    "lora_dropout",  # of training
    "lora_ga_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
}
_READ = {
    *("peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
    *("bias", "init_lora_weights"),
}
#: Beginnings of an adapter that leave the base's weights as they are. Others (PiSSA, OLoRA, …)
#: change them, and are saved for the base alone only if PEFT is asked to convert them.
_PLAIN_BEGINNINGS = (True, False, None, "gaussian", "eva", "orthogonal")
_WITHOUT = {
    "use_dora": "was trained with DoRA; train it without use_dora, or merge it into its base",
    "lora_bias": "adds biases of its own; train it without lora_bias, or merge it into its base",
    "modules_to_save": "replaces whole modules of its base; train it without modules_to_save, or "
    "merge it into its base",
    "trainable_token_indices": "changes embeddings; merge it into its base",
    "target_parameters": "adapts parameters that are no linear layers, as stacked experts are; "
    "merge it into its base",
    "layer_replication": "gives its base more layers; merge it into its base",
}
#: The way out for an adapter that is not run; for the end of a sentence.
MERGE_IT = "merge it into its base (merge_and_unload in PEFT), and serve the result as a model"


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Which linear layers an adapter adds to, with what rank and scale. See `read_config`."""

    rank: int
    alpha: float
    uses_rslora: bool
    #: A regular expression that a whole name must match, or ends of names.
    target_modules: str | tuple[str, ...]
    exclude_modules: str | tuple[str, ...]
    layers_to_transform: tuple[int, ...]
    layers_pattern: tuple[str, ...]
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]

    def rank_of(self, module: str) -> int:
        return _of_pattern(self.rank_pattern, module, self.rank)

    def scale_of(self, module: str) -> float:
        """What B(A x) is multiplied with: alpha / r, and by rsLoRA alpha / sqrt(r)
        (arXiv:2312.03732)."""
        alpha, rank = _of_pattern(self.alpha_pattern, module, self.alpha), self.rank_of(module)
        return alpha / math.sqrt(rank) if self.uses_rslora else alpha / rank

    def targets(self, module: str) -> bool:
        """Whether it adds to the linear layer of this name, by the rules of PEFT."""
        if _matches(self.exclude_modules, module):
            return False
        if isinstance(self.target_modules, str):
            is_all = self.target_modules.lower() == _ALL_LINEAR
            return is_all or _matches(self.target_modules, module)
        return _matches(self.target_modules, module) and self._is_in_layers(module)

    def _is_in_layers(self, module: str) -> bool:
        if not self.layers_to_transform:
            return True
        patterns = [_in_layer(name) for name in self.layers_pattern]
        for pattern in patterns or [r".*?\.[^.]*\.(\d+)\."]:
            found = re.match(pattern, module)
            if found is not None:
                return int(found[1]) in self.layers_to_transform
        return False


def read_config(folder: Path) -> LoraConfig:
    """Raises ModelNotFound where there is none, and ModelUnsupported where it is damaged or asks
    for what the Engine cannot run exactly."""
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise ModelNotFound(f"{folder} holds no {CONFIG_FILE}, so it is no adapter of PEFT.")
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelUnsupported(f"{path} is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelUnsupported(f"{path} holds no JSON object.")
    _refuse_what_is_not_plain(path, config)

    def field(name: str, read: Callable[[Any], Any], default: Any) -> Any:
        value = config.get(name)
        try:
            return default if value is None else read(value)
        except (TypeError, ValueError, OverflowError, AttributeError, re.error):
            raise ModelUnsupported(
                f"{path} has {name} {value!r}, which PEFT would not have written. Save the "
                "adapter again with save_pretrained()."
            ) from None

    targets = field("target_modules", _names, ())
    if not targets:
        raise ModelUnsupported(f"{path} names no target_modules, so it adds to nothing.")
    return LoraConfig(
        rank=field("r", _count, 8),
        alpha=field("lora_alpha", _number, 8.0),
        uses_rslora=field("use_rslora", bool, False),
        target_modules=targets,
        exclude_modules=field("exclude_modules", _names, ()),
        layers_to_transform=field("layers_to_transform", _layers, ()),
        layers_pattern=field("layers_pattern", _layer_names, ()),
        rank_pattern=field("rank_pattern", lambda value: _pattern(value, _count), {}),
        alpha_pattern=field("alpha_pattern", lambda value: _pattern(value, _number), {}),
    )


def _refuse_what_is_not_plain(path: Path, config: dict[str, Any]) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ModelUnsupported(
            f"{path} is of the type {kind!r}, and only LORA adapters can be run; {MERGE_IT}."
        )
    for name, value in config.items():
        if name in _HARMLESS or name in _READ or not value:
            continue
        why = _WITHOUT.get(name, f"has {name} {value!r}, which is not known here; {MERGE_IT}")
        raise ModelUnsupported(f"The adapter in {path.parent} {why}.")
    bias = config.get("bias") or "none"
    if bias != "none":
        raise ModelUnsupported(
            f"The adapter in {path.parent} trained biases of its base (bias {bias!r}); train it "
            f"with bias 'none', or {MERGE_IT}."
        )
    beginning = config.get("init_lora_weights")
    if not any(beginning is plain or beginning == plain for plain in _PLAIN_BEGINNINGS):
        raise ModelUnsupported(
            f"The adapter in {path.parent} began as {beginning!r}, which may have changed its "
            "base's weights. Save it with path_initial_model_for_weight_conversion, as PEFT's "
            f"guide to LoRA says, or {MERGE_IT}."
        )


def _matches(names: str | Sequence[str], module: str) -> bool:
    if isinstance(names, str):
        return re.fullmatch(names, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in names)


def _of_pattern(pattern: Mapping[str, _T], module: str, default: _T) -> _T:
    for key, value in pattern.items():
        if re.match(_ending_as(key), module):
            return value
    return default


def _names(value: Any) -> str | tuple[str, ...]:
    if isinstance(value, str):
        re.compile(value)
        return value
    return _words(value)


def _words(value: Any) -> tuple[str, ...]:
    words = (value,) if isinstance(value, str) else tuple(value)
    if not all(isinstance(word, str) for word in words):
        raise TypeError
    return words


def _layers(value: Any) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(map(int, value))


def _count(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError
    return value


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _layer_names(value: Any) -> tuple[str, ...]:
    words = _words(value)
    for word in words:
        re.compile(_in_layer(word))
    return words


def _in_layer(name: str) -> str:
    """Of modules in the layers of a list that is called so, with the number of the layer."""
    return rf"(?:^|.*?\.){name}\.(\d+)\."


def _ending_as(key: str) -> str:
    return rf"(.*\.)?({key})$"


def _pattern(value: Any, read: Callable[[Any], Any]) -> dict[str, Any]:
    for key in value:
        re.compile(_ending_as(key))
    return {key: read(one) for key, one in value.items()}
