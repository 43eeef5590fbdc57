"""What a caller gives to a local run, hears while it goes on, and gets in the end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gristmill.errors import LineError
from gristmill.progress import Phase as Phase
from gristmill.progress import Progress as Progress
from gristmill.settings import Settings
from gristmill.types import Usage


@dataclass(frozen=True, slots=True)
class Fleet:
    """Where workers of their own take their work from, and where they put it."""

    queue_url: str
    store_url: str


@dataclass(frozen=True, slots=True)
class RunConfig:
    """What to run, and where. `served_names` are the values of `model` that lines may carry."""

    input_path: Path
    output_path: Path
    errors_path: Path
    work_dir: Path
    model_name: str
    revision: str | None
    served_names: tuple[str, ...]
    settings: Settings
    #: LoRA adapters over the model, NAME=FOLDER each; lines ask for one by its name.
    adapters: tuple[str, ...] = ()
    #: Leave the work folder as it is when all is done.
    keep_work: bool = False
    #: None: this process answers the rows itself.
    fleet: Fleet | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """How a run ended. `status` is `completed`, `failed` (validation) or `interrupted`.

    `usage` is the whole batch's; what was decoded in this start, and how fast, is
    `generated_tokens` and `tokens_per_s`. Rows and tokens that an earlier start had already
    paid for are `rows_resumed` and `tokens_resumed`.
    """

    batch_id: str
    status: Literal["completed", "failed", "interrupted"]
    total: int
    completed: int
    failed: int
    usage: Usage
    cached_fraction: float
    elapsed_s: float
    generated_tokens: int
    tokens_per_s: float
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    itl_p50_s: float | None
    itl_p95_s: float | None
    rows_resumed: int
    tokens_resumed: int
    output_path: Path | None
    errors_path: Path | None
    #: What the worker computed with; empty when nothing was left to compute.
    equipment: str = ""
    #: Why the file failed validation: the first bad lines, and how many there are in all.
    errors: tuple[LineError, ...] = ()
    num_errors: int = 0
