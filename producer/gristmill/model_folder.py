"""What the files in the folder of a model say: hashes, limits, whether it is one at all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gristmill.errors import ModelNotFound, ModelUnsupported, UsageError
from gristmill.settings import Settings

_CONFIG_FILES = ("config.json", "generation_config.json")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
#: How the families of models call their longest sequence.
_WINDOW_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
    "n_ctx",
)
_MIB = 2**20


def check_files(path: Path) -> None:
    if not (path / "config.json").is_file():
        raise ModelNotFound(f"{path} holds no config.json, so it is no model folder.")
    if not any(path.glob("*.safetensors")):
        if any(path.glob("*.bin")) or any(path.glob("*.pt")) or any(path.glob("*.pth")):
            raise ModelUnsupported(
                f"{path} holds its weights as a pickle only, which can run code when it is read. "
                "Load it where you trust it and save it with save_pretrained(), which writes "
                "safetensors."
            )
        raise ModelNotFound(f"{path} holds no weights (*.safetensors).")
    if not (path / "tokenizer.json").is_file():
        raise ModelUnsupported(
            f"{path} holds no tokenizer.json. Make one with AutoTokenizer.from_pretrained(folder)"
            ".save_pretrained(folder)."
        )


def weights_fingerprint(path: Path) -> str:
    """Changes with the configuration and with any realistic change of weights, read in no time.

    Training changes the values everywhere, so the first and the last MiB of each file tell two
    versions apart; the first also holds the names and shapes of its tensors.
    """
    digest = hashlib.sha256()
    for file in _existing(path, _CONFIG_FILES):
        _add(digest, file.name, file.read_bytes())
    for file in sorted(path.glob("*.safetensors")):
        size = file.stat().st_size
        with file.open("rb") as weights:
            head = weights.read(_MIB)
            weights.seek(max(size - _MIB, 0))
            _add(digest, f"{file.name} {size}", head + weights.read(_MIB))
    return digest.hexdigest()


def tokenizer_hash(path: Path) -> str:
    digest = hashlib.sha256()
    for file in (*_existing(path, _TOKENIZER_FILES), *_chat_template_files(path)):
        _add(digest, file.name, file.read_bytes())
    return digest.hexdigest()


def _add(digest: hashlib._Hash, name: str, content: bytes) -> None:
    digest.update(f"{name} {len(content)}\n".encode())
    digest.update(content)


def _existing(path: Path, names: Iterable[str]) -> list[Path]:
    return [path / name for name in names if (path / name).is_file()]


def _chat_template_files(path: Path) -> list[Path]:
    return sorted([*path.glob("chat_template*"), *path.glob("additional_chat_templates/*.jinja")])


def template_hash(path: Path) -> str:
    """Hash of the chat template; empty where the folder has none."""
    digest = hashlib.sha256()
    config = path / "tokenizer_config.json"
    files = _chat_template_files(path)
    for file in files:
        _add(digest, file.name, file.read_bytes())
    if not files:
        template = read_json(config).get("chat_template") if config.is_file() else None
        if not template:
            return ""
        _add(digest, "chat_template", json.dumps(template).encode())
    return digest.hexdigest()


def find_max_model_len(config: Mapping[str, Any], *, settings: Settings, path: Path) -> int:
    own = first_int(config, _WINDOW_KEYS)
    limits = [limit for limit in (own, settings.max_model_len) if limit is not None]
    if not limits:
        raise UsageError(
            f"The config.json in {path} does not say how long a sequence may be; set "
            "GRISTMILL_MAX_MODEL_LEN."
        )
    return min(limits)


def find_vocab_size(config: Mapping[str, Any], *, path: Path) -> int:
    size = first_int(config, ("vocab_size",))
    if size is None:
        raise ModelUnsupported(f"The config.json in {path} has no vocab_size.")
    return size


def first_int(config: Mapping[str, Any], keys: Iterable[str]) -> int | None:
    """The first of `keys` that is set, in the config itself or in its part for text."""
    nested = config.get("text_config")
    for part in (config, nested if isinstance(nested, dict) else {}):
        for key in keys:
            if isinstance(part.get(key), int) and part[key] > 0:
                return int(part[key])
    return None


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise ModelUnsupported(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelUnsupported(f"{path} holds no JSON object.")
    return value
