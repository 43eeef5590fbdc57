"""LoRA adapters by name: each is served as a model of its own over one base model.

An adapter is a folder as PEFT saves it. It is told from every other by what is in its files, so a
Shard that was made for one never runs with another. Weights are not loaded here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from gristmill.adapter_config import CONFIG_FILE, WEIGHTS_FILE, read_config
from gristmill.errors import ModelNotFound, ModelUnsupported, UsageError
from gristmill.types import ModelPin

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,63}")
#: A Worker's beat names all of its adapters, and a queue takes messages of 4 KiB.
_MAX_ANNOUNCED_BYTES = 1800


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter that lies on this machine. `base` is the model that it is for, as it was given on
    the command line; empty where there is one model only."""

    name: str
    path: Path
    #: 128 bits of a hash over its configuration and weights.
    identity: str
    base: str = ""

    @property
    def label(self) -> str:
        """As a Worker's card has it."""
        return f"{self.name}@{self.identity}"

    def pin(self, base: ModelPin) -> ModelPin:
        """Of Shards that were made for it over this base."""
        return replace(base, name=self.name, revision=f"{base.revision}+{self.identity}")


def find_adapters(wanted: Iterable[str]) -> tuple[Adapter, ...]:
    """Of options NAME=FOLDER, or NAME@MODEL=FOLDER. Raises UsageError, ModelNotFound and
    ModelUnsupported."""
    found = tuple(map(_find, wanted))
    names = [adapter.name for adapter in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"Two adapters are called {twice}; give each a name of its own.")
    if sum(len(adapter.label) + 3 for adapter in found) > _MAX_ANNOUNCED_BYTES:
        raise UsageError(
            f"{len(found)} adapters are more than a worker can announce. Give them shorter names, "
            "or share them out among workers."
        )
    return found


def check_unchanged(adapters: Iterable[Adapter]) -> None:
    """Once their weights are loaded: they must be those that the identities were made of.

    Raises ModelNotFound and ModelUnsupported.
    """
    for adapter in adapters:
        if _identity(adapter.path) != adapter.identity:
            raise ModelUnsupported(
                f"The files in {adapter.path} of the adapter {adapter.name} were changed while "
                "they were loaded. Start again when they are whole, or put each version into a "
                "folder of its own."
            )


def parts_of(option: str) -> tuple[str, str, str]:
    """Name, model and folder of an option NAME=FOLDER or NAME@MODEL=FOLDER; empty what it lacks."""
    named, _, folder = option.partition("=")
    name, _, base = named.partition("@")
    return name, base, folder


def name_of(label: str) -> str:
    """What people call an adapter, from a Worker's card."""
    return label.rpartition("@")[0] or label


def _find(option: str) -> Adapter:
    name, base, folder = parts_of(option)
    if not folder or not _NAME.fullmatch(name):
        raise UsageError(
            f"--adapter takes NAME=FOLDER, and NAME has up to 64 letters, digits and . _ : / -, "
            f"not {option!r}."
        )
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise ModelNotFound(f"There is no folder {folder} for the adapter {name}.")
    read_config(path)
    return Adapter(name, path.resolve(), _identity(path), base)


def _identity(path: Path) -> str:
    weights = path / WEIGHTS_FILE
    if not weights.is_file():
        if any(path.glob("adapter_model.bin")):
            raise ModelUnsupported(
                f"{path} holds its weights as a pickle only, which can run code when it is read. "
                "Load it where you trust it and save it with save_pretrained(), which writes "
                "safetensors."
            )
        raise ModelNotFound(f"{path} holds no {WEIGHTS_FILE}. Copy the folder anew.")
    digest = hashlib.sha256()
    for file in (path / CONFIG_FILE, weights):
        digest.update(f"{file.name} {file.stat().st_size}\n".encode())
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:32]
