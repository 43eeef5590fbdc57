"""Loads the model of a Worker and makes the Engine that fits it: one that generates, or one that
reads whole prompts and only makes vectors."""

from __future__ import annotations

import json
import logging
import os
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gristmill.adapters import check_unchanged
from gristmill.compute import WorkerConfig
from gristmill.embedding import generates_nothing
from gristmill.fleet import Feature, WorkerCard, WorkerState
from gristmill.quick_imports import import_quickly
from gristmill_worker.announcer import Announcer
from gristmill_worker.card import generator_features
from gristmill_worker.engine.base import Engine

log = logging.getLogger(__name__)

_FETCHED_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Equipment:
    """An Engine, ready; `description` says for people what it computes with.

    `kv_tokens` is how many tokens its KV cache holds, None where it needs none. The rest is as in
    WorkerCard.
    """

    engine: Engine
    description: str
    device: str
    memory_bytes: int
    max_row_tokens: int
    features: tuple[str, ...]
    kv_tokens: int | None = None

    def on_card(self, card: WorkerCard) -> WorkerCard:
        """The card of the Worker that has it."""
        return replace(
            card,
            device=self.device,
            memory_bytes=self.memory_bytes,
            max_row_tokens=self.max_row_tokens,
            max_num_seqs=self.engine.max_num_seqs,
            kv_tokens=self.kv_tokens,
            features=self.features,
        )


def equip(config: WorkerConfig, announcer: Announcer) -> Equipment:
    """As `load_engine`, and tells all that is found on the card of the Worker.

    What the GPU is called is told before the model is loaded: others like it may have told how long
    rows it takes.
    """
    _read_soon(config.model_path)
    if config.device != "cpu":
        import_quickly("gristmill_worker.models.loader")
        from gristmill_worker.device import device_name
        from gristmill_worker.models.loader import check_device

        check_device(config.device)
        announcer.card = replace(announcer.card, device=device_name(config.device))
        announcer.say(WorkerState.LOADING)
    equipment = load_engine(config)
    announcer.card = equipment.on_card(announcer.card)
    return equipment


def _read_soon(folder: Path) -> None:
    """Have the kernel fetch the weights from the disk while torch is imported, which takes seconds
    as well. Takes no memory from anybody: what is not used goes first when some is wanted."""
    if hasattr(os, "posix_fadvise"):  # not on macOS
        fetch = threading.Thread(target=_fetch, args=(folder,), name="fetch", daemon=True)
        fetch.start()


def _fetch(folder: Path) -> None:
    for path in sorted(folder.glob("*.safetensors")):
        # Of what cannot be read, whoever loads it says what is wrong.
        with suppress(OSError), path.open("rb") as weights:
            # The kernel takes some MiB of a call at most, and leaves the rest.
            for begin in range(0, path.stat().st_size, _FETCHED_BYTES):
                os.posix_fadvise(weights.fileno(), begin, _FETCHED_BYTES, os.POSIX_FADV_WILLNEED)


def load_engine(config: WorkerConfig) -> Equipment:
    """Raises ModelUnsupported, OutOfMemory and UsageError, as the loaders do."""
    import_quickly("gristmill_worker.models.loader")
    import torch

    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    equipment = _encoder(config) if is_encoder(config.model_path) else _generator(config)
    log.info("engine ready model=%s: %s", config.pin.name, equipment.description)
    return equipment


def is_encoder(path: Path) -> bool:
    """Whether the model in a folder reads whole prompts and only makes vectors."""
    return generates_nothing(json.loads((path / "config.json").read_bytes()))


def _encoder(config: WorkerConfig) -> Equipment:
    from gristmill_worker.device import describe_device, device_name
    from gristmill_worker.engine.encoder_engine import EncoderEngine
    from gristmill_worker.memory import free_bytes
    from gristmill_worker.models.encoder import load_encoder

    loaded = load_encoder(
        config.model_path,
        dtype=config.pin.dtype,
        device=config.device,
        max_model_len=config.max_model_len,
        cache_dir=config.cache_dir,
    )
    memory_bytes = free_bytes(config.device)
    engine = EncoderEngine(
        loaded,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
    )
    return Equipment(
        engine,
        f"{engine.max_num_seqs} inputs at once; {engine.max_model_len:,} tokens an input at most; "
        f"{config.pin.dtype} on {describe_device(config.device)}",
        device=device_name(config.device),
        memory_bytes=memory_bytes,
        max_row_tokens=engine.max_model_len,
        features=(Feature.EMBED.value,),
    )


def _generator(config: WorkerConfig) -> Equipment:
    from gristmill_worker.build import build_engine
    from gristmill_worker.device import describe_device, device_name
    from gristmill_worker.memory import free_bytes
    from gristmill_worker.models.loader import load_model

    loaded = load_model(
        config.model_path,
        dtype=config.pin.dtype,
        device=config.device,
        max_model_len=config.max_model_len,
        cache_dir=config.cache_dir,
        adapters={adapter.identity: adapter.path for adapter in config.adapters},
    )
    check_unchanged(config.adapters)
    memory_bytes = free_bytes(config.device)
    engine = build_engine(
        loaded,
        cache_dir=config.cache_dir,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        block_size=config.block_size,
        kv_memory_fraction=config.kv_memory_fraction,
        drafts=config.drafts,
    )
    kv_tokens = engine.num_blocks * config.block_size
    return Equipment(
        engine,
        f"{engine.max_num_seqs} rows at once; KV cache of {kv_tokens:,} tokens "
        f"({kv_tokens * loaded.kv_bytes_per_token / 2**30:.1f} GiB); {engine.max_model_len:,} "
        f"tokens a row at most; {config.pin.dtype} on {describe_device(config.device)}"
        + "".join(f"; adapter {adapter.name}" for adapter in config.adapters),
        device=device_name(config.device),
        memory_bytes=memory_bytes,
        max_row_tokens=engine.max_model_len,
        features=generator_features(),
        kv_tokens=kv_tokens,
    )
