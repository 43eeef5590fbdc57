"""Who answers the requests of a scored data set: this process, or a service behind its API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gristmill.errors import BatchInvalid, GristmillError
from gristmill.progress import Progress

if TYPE_CHECKING:
    from gristmill.settings import Settings


@dataclass(frozen=True, slots=True)
class Answered:
    """Lines of results, in the order of the requests in each file."""

    answers: Path
    #: There is none where every row was answered.
    errors: Path


class Interrupted(GristmillError):
    """Somebody asked to stop. What is done is kept, and the same call goes on."""

    exit_code = 130


class Answerer(Protocol):
    """Answers a file of requests, and goes on where an earlier start with the same file stopped."""

    @property
    def model(self) -> str:
        """What the bodies call the model."""

    def answer(self, requests: Path, folder: Path, *, url: str) -> Answered:
        """`folder` is its own until the results are used; `url` is the endpoint of all requests.

        Raises Interrupted, BatchInvalid, and what else keeps the batch from running.
        """


def nothing(progress: Progress) -> None:
    """Hears of progress, and does nothing."""


def never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Embedded:
    """`gristmill run` in this process. `model` as its option takes it."""

    model: str
    revision: str | None = None
    settings: Settings | None = None
    on_progress: Callable[[Progress], None] = field(default=nothing)
    should_stop: Callable[[], bool] = field(default=never)

    def answer(self, requests: Path, folder: Path, *, url: str) -> Answered:
        """As the protocol has it; raises what `local.run` does."""
        from gristmill import local
        from gristmill.settings import Settings

        answered = Answered(folder / "answers.jsonl", folder / "answers.errors.jsonl")
        config = local.RunConfig(
            input_path=requests,
            output_path=answered.answers,
            errors_path=answered.errors,
            work_dir=folder / "run",
            model_name=self.model,
            revision=self.revision,
            served_names=(),
            settings=self.settings or Settings(),
            keep_work=True,  # until the results are used: then the whole folder goes
        )
        summary = local.run(config, on_progress=self.on_progress, should_stop=self.should_stop)
        if summary.status == "failed":
            raise BatchInvalid(summary.errors, summary.num_errors)
        if summary.status == "interrupted":
            raise Interrupted(
                f"Interrupted. What is done is kept in {folder}; the same call goes on."
            )
        return answered
