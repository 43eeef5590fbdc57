"""A local run with a FakeEngine behind it: a model folder, an input file, a way to run them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fake_engine import FakeEngine
from pipeline import read_lines
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from gristmill import local
from gristmill.compute import WorkerConfig
from gristmill.queues.base import Queue
from gristmill.settings import Settings
from gristmill.stores.base import Store
from gristmill_worker.worker import Worker


class RealClock:
    """The machine's clock, for an Engine whose steps shall take their time."""

    def __call__(self) -> float:
        return time.monotonic()

    def advance(self, seconds: float) -> None:
        time.sleep(seconds)


#: The tokens of the model below, by id: one for each byte.
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


def make_model_folder(folder: Path, *, weights: bytes = b"weights") -> Path:
    """A model of 256 tokens, one for each byte, without a BOS; its window is 512."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(BYTES)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "config.json").write_text(
        json.dumps({"vocab_size": 256, "max_position_embeddings": 512})
    )
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
    )
    return folder


def make_line(custom_id: str, **body: Any) -> str:
    body = {"model": "M", "prompt": f"Say {custom_id}", "max_tokens": 20, **body}
    request = {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}
    return json.dumps(request)


@dataclass
class Desk:
    """Everything that one `gristmill run` needs, in one folder."""

    folder: Path
    settings: Settings = field(
        default_factory=lambda: Settings(
            shard_max_jobs=4, flush_interval_s=0.02, quiet_flush_interval_s=0.02
        )
    )
    #: Hears of (prompt, position) of each token that is decoded.
    on_decode: Callable[[tuple[int, ...], int], None] = lambda prompt, position: None
    step_s: float = 0.0
    keep_work: bool = False
    fleet: local.Fleet | None = None

    def __post_init__(self) -> None:
        self.input = self.folder / "in.jsonl"
        self.output = self.folder / "out.jsonl"
        self.errors = self.folder / "out.errors.jsonl"
        self.work = self.folder / "work"
        self.model = make_model_folder(self.folder / "model")
        self.progress: list[local.Progress] = []

    def write(self, lines: Iterable[str]) -> None:
        self.input.write_text("".join(f"{line}\n" for line in lines))

    def run(
        self,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        on_progress: Callable[[local.Progress], None] = lambda progress: None,
    ) -> local.Summary:
        def heard(progress: local.Progress) -> None:
            self.progress.append(progress)
            on_progress(progress)

        return local.run(
            self.config(),
            on_progress=heard,
            should_stop=should_stop,
            build_worker=self.build_worker,
        )

    def config(self) -> local.RunConfig:
        return local.RunConfig(
            input_path=self.input,
            output_path=self.output,
            errors_path=self.errors,
            work_dir=self.work,
            model_name=str(self.model),
            revision=None,
            served_names=("M",),
            settings=self.settings,
            keep_work=self.keep_work,
            fleet=self.fleet,
        )

    def build_worker(self, config: WorkerConfig, queue: Queue, store: Store) -> Worker:
        engine = FakeEngine(
            clock=RealClock(),  # type: ignore[arg-type]
            step_s=self.step_s,
            on_decode=self.on_decode,
            max_num_seqs=8,
        )
        return Worker(engine, queue, store, config)

    @property
    def answers(self) -> list[dict[str, Any]]:
        return read_lines(self.output.read_bytes())

    @property
    def failures(self) -> list[dict[str, Any]]:
        return read_lines(self.errors.read_bytes())


def comparable(line: dict[str, Any]) -> dict[str, Any]:
    """A line without what may differ between two runs: creation time and receipt."""
    line = json.loads(json.dumps(line))
    if line["response"]:
        line["response"]["body"].pop("created", None)
        line["response"]["body"].pop("gristmill", None)
    return line
