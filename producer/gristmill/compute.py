"""How the control side finds the compute side without importing it, and what it tells it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gristmill.adapters import Adapter
from gristmill.errors import UsageError
from gristmill.fleet import OWN_POOL
from gristmill.queues.base import BULK_LANE, Queue
from gristmill.stores.base import Store
from gristmill.telemetry import Telemetry
from gristmill.types import ModelPin

if TYPE_CHECKING:
    from gristmill.settings import Settings

#: The entry points that the extra `worker` brings.
_GROUP = "gristmill.worker"


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """What a Worker runs and within which limits. Seconds are of the monotonic clock."""

    model_path: Path
    pin: ModelPin
    #: Where what is compiled on this machine is kept.
    cache_dir: Path
    #: Prompt plus output of one row at most, in tokens; the Engine may know a lower limit.
    max_model_len: int
    #: "cpu" or "cuda"; the dtype is the pin's.
    device: str = "cpu"
    #: LoRA adapters over the model, beside which it runs too.
    adapters: tuple[Adapter, ...] = ()
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    block_size: int = 16
    #: Whether steps with few rows compute draft tokens.
    drafts: bool = True
    #: None leaves it to the Worker, which knows what else needs memory.
    kv_memory_fraction: float | None = None
    #: None leaves the number of CPU threads as it is.
    num_threads: int | None = None
    #: What it listens to, the first one first; `fleet.OWN_POOL` is the Lane of its pool.
    lanes: tuple[str, ...] = (OWN_POOL, BULK_LANE)
    flush_interval_s: float = 5.0
    quiet_flush_interval_s: float = 30.0
    #: How long an idle Worker waits for a message before it looks whether it should stop.
    idle_wait_s: float = 0.5
    #: No step for so long, and the Leases are renewed no more: somebody else shall try.
    watchdog_s: float = 120.0
    #: How long the queue or the store may be away before the Worker gives up.
    patience_s: float = 0.0
    #: No other Worker can have work of this queue, so no other Attempt can be alive.
    is_sole: bool = False
    #: With nothing to do for so long, the Worker ends.
    exit_when_idle_s: float | None = None


def worker_config(
    settings: Settings,
    *,
    model_path: Path,
    pin: ModelPin,
    max_model_len: int,
    device: str,
    adapters: tuple[Adapter, ...] = (),
    idle_wait_s: float = 0.5,
    patience_s: float = 0.0,
    is_sole: bool = False,
    exit_when_idle_s: float | None = None,
) -> WorkerConfig:
    """What the settings say of a Worker, for one model."""
    return WorkerConfig(
        model_path=model_path,
        pin=pin,
        cache_dir=settings.cache_dir,
        max_model_len=max_model_len,
        device=device,
        adapters=adapters,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        block_size=settings.block_size,
        drafts=settings.drafts,
        kv_memory_fraction=settings.kv_memory_fraction,
        num_threads=settings.num_threads,
        lanes=settings.lane_names,
        flush_interval_s=settings.flush_interval_s,
        quiet_flush_interval_s=settings.quiet_flush_interval_s,
        watchdog_s=settings.watchdog_s,
        idle_wait_s=idle_wait_s,
        patience_s=patience_s,
        is_sole=is_sole,
        exit_when_idle_s=exit_when_idle_s,
    )


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """What a Worker has done since it began, in tokens."""

    num_prefill_tokens: int = 0
    #: Tokens that were decoded, and tokens taken over from earlier Attempts.
    num_generated_tokens: int = 0
    num_resumed_tokens: int = 0
    num_preempted: int = 0


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """How a Worker is just now. One that is live and in no trouble takes work."""

    #: False: the engine loop has not turned for so long that it never will again.
    is_live: bool
    is_draining: bool
    #: Outages of the queue or the store that it waits out, in words.
    troubles: tuple[str, ...] = ()


class ComputeWorker(Protocol):
    """The process, or thread, that turns Leases into Segments."""

    def run(self, stop: threading.Event, on_hang: Callable[[], None] = ...) -> None:
        """Work until `stop` is set, then save what is under way and give the rest back.

        `on_hang` is called, from another thread, when the engine hangs.
        """

    def watch(self, telemetry: Telemetry) -> None:
        """What is done from now on is told there too. To be called before `run`."""

    @property
    def health(self) -> WorkerHealth:
        """May be read from any thread."""

    @property
    def equipment(self) -> str:
        """What it computes with, for people: memory of the KV cache, limits, threads."""

    @property
    def stats(self) -> WorkerStats:
        """May be read from any thread."""


BuildWorker = Callable[[WorkerConfig, Queue, Store], ComputeWorker]


def find_worker() -> BuildWorker:
    """What loads a model and makes a Worker. Raises UsageError without the compute side."""
    build: BuildWorker = _load("worker")
    return build


def find_device(wanted: str) -> str:
    """ "cpu" or "cuda", from the setting `device`. Without the compute side there is no GPU."""
    if wanted != "auto":
        return wanted
    if not entry_points(group=_GROUP, name="device"):
        return "cpu"
    device: str = _load("device")()
    return device


def find_dtype(wanted: str, device: str) -> str:
    """The dtype of a ModelPin, from the setting `dtype`: what is fast and exact on the device."""
    if wanted != "auto":
        return wanted
    return "float32" if device == "cpu" else "bfloat16"


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write a GGUF file as a safetensors folder (see `models.find_model`)."""
    _load("convert-gguf")(gguf, folder)


def _load(name: str) -> Any:
    found = entry_points(group=_GROUP, name=name)
    if not found:
        raise UsageError(
            "This machine has no compute side: pip install 'gristmill[worker]' brings it."
        )
    try:
        return next(iter(found)).load()
    except ModuleNotFoundError as error:
        raise UsageError(
            f"The compute side lacks the module {error.name}: pip install 'gristmill[worker]'."
        ) from error
