"""An adapter that could not be run exactly is refused when it is loaded, with the way out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lora import save_adapter, with_adapters, write_config
from safetensors.torch import load_file, save_file
from tiny import VOCAB_SIZE, save_folder
from transformers import ModernBertDecoderConfig, ModernBertDecoderForCausalLM

from gristmill.adapters import find_adapters
from gristmill.compute import WorkerConfig
from gristmill.errors import ModelNotFound, ModelUnsupported
from gristmill.types import ModelPin
from gristmill_worker.equip import load_engine
from gristmill_worker.models.hook import ATTENTION

WEIGHTS = "adapter_model.safetensors"
Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture
def oracle_and_folder(model_pair: Any, tmp_path: Path) -> tuple[Any, Any, Path]:
    oracle, loaded = model_pair("llama")
    return oracle, loaded, save_adapter(tmp_path / "adapter", oracle, ends=("q_proj", "v_proj"))


def change_config(**changes: Any) -> Callable[[Path, Any], None]:
    def change(folder: Path, oracle: Any) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def change_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Any:
    def change_file(folder: Path, oracle: Any) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS)

    return change_file


def write_text(name: str, text: str) -> Callable[[Path, Any], None]:
    return lambda folder, oracle: (folder / name).write_text(text) and None


def cut(folder: Path, oracle: Any) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:-100])


def embedded(folder: Path, oracle: Any) -> None:
    change_config(target_modules=["q_proj", "v_proj", "lm_head"])(folder, oracle)
    size = oracle.lm_head.weight.shape
    more = {
        "base_model.model.lm_head.lora_A.weight": torch.ones(4, size[1]),
        "base_model.model.lm_head.lora_B.weight": torch.ones(size[0], 4),
    }
    change_weights(lambda tensors: tensors.update(more))(folder, oracle)


def of_stranger(folder: Path, oracle: Any) -> None:
    change_config(target_modules=["q_proj", "v_proj", "wq"])(folder, oracle)
    name = "base_model.model.model.layers.0.attention.wq.lora_A.weight"
    change_weights(lambda t: t.update({name: torch.ones(4, 64)}))(folder, oracle)


CASES: dict[str, tuple[Callable[[Path, Any], None], str]] = {
    "broken JSON": (write_text("adapter_config.json", "{"), "not valid JSON"),
    "no object": (write_text("adapter_config.json", "[]"), "no JSON object"),
    "another method": (change_config(peft_type="IA3"), "'IA3'"),
    "DoRA": (change_config(use_dora=True), "DoRA"),
    "biases": (change_config(bias="lora_only"), "bias 'lora_only'"),
    "biases of its own": (change_config(lora_bias=True), "lora_bias"),
    "whole modules": (change_config(modules_to_save=["lm_head"]), "modules_to_save"),
    "token embeddings": (change_config(trainable_token_indices=[1]), "embeddings"),
    "experts": (change_config(target_parameters=["experts.up"]), "stacked experts"),
    "copied layers": (change_config(layer_replication=[[0, 1]]), "more layers"),
    "PiSSA": (change_config(init_lora_weights="pissa"), "'pissa'"),
    "what nobody knows yet": (change_config(use_xlora=True), "use_xlora True"),
    "no targets": (change_config(target_modules=[]), "no target_modules"),
    "odd rank": (change_config(r="many"), "r 'many'"),
    "odd pattern": (change_config(rank_pattern={"(": 4}), "rank_pattern"),
    "a pattern that cannot end a name": (
        change_config(alpha_pattern={"(?i)q": 4}),
        "alpha_pattern",
    ),
    "odd layers": (change_config(layers_to_transform=[0], layers_pattern="("), "layers_pattern"),
    "an endless scale": (change_config(lora_alpha=float("inf")), "lora_alpha inf"),
    "a scale beyond the dtype": (change_config(lora_alpha=1e41), "not finite"),
    "another rank": (change_config(r=8), "(4, 64)"),
    "cut short": (cut, "cut or damaged"),
    "not finite": (
        change_weights(lambda t: t[f"{Q}.lora_A.weight"].fill_(float("nan"))),
        "not finite",
    ),
    "half a pair": (change_weights(lambda t: t.pop(f"{Q}.lora_B.weight")), "None"),
    "a layer less": (
        change_weights(lambda t: [t.pop(f"{Q}.lora_{part}.weight") for part in "AB"]),
        "lacks weights of 1 layers",
    ),
    "a layer more": (change_config(target_modules=["v_proj"]), "does not name"),
    "magnitudes": (
        change_weights(lambda t: t.update({f"{Q}.lora_magnitude_vector": torch.ones(4)})),
        "lora_magnitude_vector",
    ),
    "embeddings": (
        change_weights(lambda t: t.update({f"{Q}.lora_embedding_A": torch.ones(4)})),
        "lora_embedding_A",
    ),
    "the head": (embedded, "the head of the model"),
    "a strange layer": (of_stranger, "no layer of that name"),
}


@pytest.mark.parametrize("what", CASES)
def test_what_cannot_be_run_exactly_is_refused(
    what: str, oracle_and_folder: tuple[Any, Any, Path]
) -> None:
    oracle, loaded, folder = oracle_and_folder
    change, said = CASES[what]
    change(folder, oracle)

    with pytest.raises(ModelUnsupported) as raised:
        with_adapters(loaded, packed=False, one=folder)

    assert said in str(raised.value) and str(folder) in str(raised.value)


def test_a_layer_that_sees_only_the_tokens_of_logits_is_refused(
    model_pair: Any, tmp_path: Path
) -> None:
    sizes = {"vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96}
    ids = dict.fromkeys(("pad_token_id", "bos_token_id", "cls_token_id"), 0)
    config = ModernBertDecoderConfig(
        **sizes, **ids, num_hidden_layers=2, num_attention_heads=4, eos_token_id=2, sep_token_id=2
    )
    model = ModernBertDecoderForCausalLM(config).eval()
    model.set_attn_implementation(ATTENTION)
    loaded = replace(model_pair("llama")[1], model=model)
    folder = save_adapter(tmp_path / "one", model, ends=("q_proj", "dense"))

    with pytest.raises(ModelUnsupported, match=r"lm_head\.dense.* does not see each token"):
        with_adapters(loaded, packed=False, one=folder)


def test_weights_that_are_loaded_stay_when_their_file_is_written_over(
    oracle_and_folder: tuple[Any, Any, Path],
) -> None:
    _, loaded, folder = oracle_and_folder
    deltas = with_adapters(loaded, packed=False, one=folder).adapters["one"].values()
    before = [delta.of(torch.ones(1, 64)) for delta in deltas]

    with (folder / WEIGHTS).open("r+b") as file:
        file.write(bytes(os.path.getsize(folder / WEIGHTS)))

    assert all(map(torch.equal, before, [delta.of(torch.ones(1, 64)) for delta in deltas]))


def test_files_that_change_while_they_are_loaded_are_refused(
    oracle_and_folder: tuple[Any, Any, Path], tmp_path: Path, compiled: Any
) -> None:
    oracle, _, folder = oracle_and_folder
    found = find_adapters([f"one={folder}"])
    save_adapter(folder, oracle, ends=("q_proj", "v_proj"), seed=2)
    config = WorkerConfig(
        save_folder(tmp_path / "model", oracle),
        ModelPin("model", "rev", "tok", "float32"),
        compiled.cache_dir,
        64,
        adapters=found,
    )

    with pytest.raises(ModelUnsupported, match=f"{folder}.* were changed while"):
        load_engine(config)


def test_an_adapter_of_a_larger_model_is_refused(model_pair: Any, tmp_path: Path) -> None:
    oracle, loaded = model_pair("llama")
    folder = save_adapter(tmp_path / "one", oracle, ends=("q_proj",))
    tensors = {
        name: torch.ones(4, 128) if name.endswith("A.weight") else tensor
        for name, tensor in load_file(folder / WEIGHTS).items()
    }
    save_file(tensors, folder / WEIGHTS)

    with pytest.raises(ModelUnsupported, match=r"matrices of \(4, 128\)"):
        with_adapters(loaded, packed=False, one=folder)


@pytest.mark.parametrize("name", ["adapter_config.json", WEIGHTS])
def test_a_folder_that_lacks_a_file_is_no_adapter(
    name: str, oracle_and_folder: tuple[Any, Any, Path]
) -> None:
    _, loaded, folder = oracle_and_folder
    (folder / name).unlink()

    with pytest.raises(ModelNotFound, match=name):
        with_adapters(loaded, packed=False, one=folder)


def test_what_says_nothing_about_the_result_is_passed_over(
    oracle_and_folder: tuple[Any, Any, Path],
) -> None:
    _, loaded, folder = oracle_and_folder
    write_config(
        folder,
        r=4,
        target_modules=["q_proj", "v_proj"],
        base_model_name_or_path="org/base",
        lora_dropout=0.1,
        fan_in_fan_out=True,
        inference_mode=True,
        init_lora_weights="gaussian",
        peft_version="0.21.2",
        megatron_core="megatron.core",
        qalora_group_size=16,
        use_dora=False,
        modules_to_save=None,
    )

    found = with_adapters(loaded, packed=False, one=folder)

    assert len(found.adapters["one"]) == 4
