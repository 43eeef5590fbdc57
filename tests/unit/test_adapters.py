"""LoRA adapters as models of their own: options, pins, cards, and who can run what."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gristmill.adapters import Adapter, find_adapters, name_of
from gristmill.control.namesakes import tell_namesake
from gristmill.errors import GristmillError, ModelNotFound, ModelUnsupported, UsageError
from gristmill.fleet import PREFILL_LENGTHS, StepTime, WorkerBeat, WorkerCard, WorkerState, pool_of
from gristmill.local_model import find_catalogue
from gristmill.message_wire import encode_beat
from gristmill.queues.base import MAX_BODY_BYTES
from gristmill.settings import Settings
from gristmill.types import ModelPin

PIN = ModelPin("org/base", "rev", "tok", "float32")


def make_adapter(folder: Path, weights: bytes = b"weights", **config: object) -> Path:
    folder.mkdir(parents=True)
    written = {"peft_type": "LORA", "r": 4, "target_modules": ["q_proj"], **config}
    (folder / "adapter_config.json").write_text(json.dumps(written))
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return folder


def make_model(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"vocab_size": 9, "max_position_embeddings": 8}))
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).write_text("{}")
    return folder


def test_an_adapter_is_told_by_what_is_in_its_files(tmp_path: Path) -> None:
    folders = [
        make_adapter(tmp_path / "one"),
        make_adapter(tmp_path / "copy"),
        make_adapter(tmp_path / "weights", b"others"),
        make_adapter(tmp_path / "config", r=8),
    ]

    one, copy, weights, config = find_adapters(f"{f.name}={f}" for f in folders)

    assert one.identity == copy.identity and name_of(one.label) == "one"
    assert len({one.identity, weights.identity, config.identity}) == 3
    pin = one.pin(PIN)
    assert (pin.name, pin.adapter, pin.base_revision) == ("one", one.identity, "rev")
    assert (PIN.adapter, PIN.base_revision) == ("", "rev")


@pytest.mark.parametrize(
    ("option", "error", "said"),
    [
        ("{good}", UsageError, "NAME=FOLDER"),
        ("one=", UsageError, "NAME=FOLDER"),
        ("two words={good}", UsageError, "two words"),
        ("one={nothing}", ModelNotFound, "no folder"),
        ("one={empty}", ModelNotFound, "adapter_config.json"),
        ("one={pickle}", ModelUnsupported, "pickle"),
        ("one={bare}", ModelNotFound, "adapter_model.safetensors"),
        ("one={dora}", ModelUnsupported, "DoRA"),
    ],
)
def test_what_is_no_adapter_is_refused_before_anything_is_loaded(
    option: str, error: type[GristmillError], said: str, tmp_path: Path
) -> None:
    folders = {name: tmp_path / name for name in ("good", "nothing", "empty", "pickle", "bare")}
    make_adapter(folders["good"])
    folders["empty"].mkdir()
    for name in ("pickle", "bare"):
        (make_adapter(folders[name]) / "adapter_model.safetensors").unlink()
    (folders["pickle"] / "adapter_model.bin").touch()
    folders["dora"] = make_adapter(tmp_path / "dora", use_dora=True)

    with pytest.raises(error, match=said):
        find_adapters([option.format(**folders)])


def test_names_of_adapters_are_their_own_and_fit_into_a_message(tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "one")
    with pytest.raises(UsageError, match="Two adapters are called one"):
        find_adapters([f"one={folder}", f"one={folder}"])
    with pytest.raises(UsageError, match="more than a worker can announce"):
        find_adapters([f"{n:050}={folder}" for n in range(30)])

    found = find_adapters([f"{n:064}={folder}" for n in range(18)])

    card = WorkerCard(
        *("w" * 20, "h" * 128, ModelPin("org/" + "m" * 100, "r" * 64, "t" * 64, "bfloat16")),
        *("cuda NVIDIA H200 something of a long name", 10**6, 10**4),
        adapters=tuple(adapter.label for adapter in found),
        features=("embed", "generate", "grammar", "logprobs", "score"),
        lanes=("pool-128k-0123456789abcdef", "bulk"),
        prefill_tokens_per_s=tuple((length, 123456.7) for length in PREFILL_LENGTHS),
        step_time=StepTime(0.01234, 0.0001234, 1.234e-07),
    )
    assert len(encode_beat(WorkerBeat(card, 10**6, WorkerState.READY, 1e9))) < MAX_BODY_BYTES


def test_adapters_are_models_beside_their_base(tmp_path: Path) -> None:
    models = [str(make_model(tmp_path / name)) for name in ("base", "other")]
    one = make_adapter(tmp_path / "one")

    alone = find_catalogue(models[:1], [f"one={one}"], settings=Settings(device="cpu"))
    several = find_catalogue(models, [f"one@other={one}"], settings=Settings(device="cpu"))

    base, adapted = alone.models
    assert (adapted.name, adapted.served_names) == ("one", ("one",))
    assert adapted.pin == alone.adapters[0].pin(base.pin) and adapted.path == base.path
    assert alone.asked_for("one") is adapted and alone.asked_for("base") is base
    assert alone.asked_for("what nobody knows") is base
    assert several.models[2].path == several.models[1].path


@pytest.mark.parametrize(
    ("num_models", "option", "said"),
    [
        (1, "base={one}", "a name of the model base"),
        (2, "other@base={one}", "a name of the model other"),
        (2, "one={one}", "--adapter one@MODEL="),
        (2, "one@third={one}", "'third'.* base, other"),
        (0, "one={one}", "none"),
    ],
)
def test_an_adapter_must_say_what_it_is_for(
    num_models: int, option: str, said: str, tmp_path: Path
) -> None:
    models = [str(make_model(tmp_path / name)) for name in ("base", "other")][:num_models]
    one = make_adapter(tmp_path / "one")

    with pytest.raises(UsageError, match=said):
        find_catalogue(models, [option.format(one=one)], settings=Settings(device="cpu"))


def test_of_a_worker_with_another_version_of_the_adapter_it_is_told() -> None:
    wanted, older = (Adapter("legal", Path(), digit * 32) for digit in "ab")
    card = WorkerCard("w", "host", PIN, "cpu", 512, 8, adapters=(older.label,))

    assert tell_namesake(PIN, card.pins) == ""
    said = tell_namesake(wanted.pin(PIN), card.pins)

    assert "call theirs legal" in said and "adapter bbbb" in said and "revision" not in said


def test_a_worker_runs_its_model_and_that_with_each_of_its_adapters() -> None:
    mine, other = (Adapter(name, Path(), name * 8) for name in ("mine", "other"))
    card = WorkerCard("w", "host", PIN, "cpu", 512, 8, adapters=(mine.label,))

    for pin, expected in (
        (PIN, True),
        (replace(PIN, name="called otherwise"), True),
        (mine.pin(PIN), True),
        (replace(mine, name="called otherwise").pin(PIN), True),
        (other.pin(PIN), False),
        (mine.pin(replace(PIN, revision="other")), False),
        (mine.pin(replace(PIN, dtype="bfloat16")), False),
    ):
        assert card.runs(pin) is expected
        pool = pool_of(card)
        alike = (pool.tokenizer_hash, pool.dtype) == (pin.tokenizer_hash, pin.dtype)
        assert (alike and pin.revision in pool.revisions) is expected
