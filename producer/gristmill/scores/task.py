"""What a task is: a body for each row, columns from its answer, figures over all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gristmill.data.prompts import Prompt
from gristmill.data.rows import Row
from gristmill.data.template import no_such_column, place, text_of
from gristmill.errors import DataInvalid, UsageError
from gristmill.scores.figures import Figures

SCORE_URL = "/v1/score"


class Task(Protocol):
    """Asked of a data set as a whole; it holds no row. Rows are numbered from 1."""

    @property
    def name(self) -> str:
        """As on the command line."""

    @property
    def url(self) -> str:
        """The endpoint that its bodies are for."""

    def body(self, row: Row, number: int) -> dict[str, Any]:
        """The body for a row, without the model. Raises DataInvalid, naming row and column."""

    def columns(self) -> Mapping[str, Any]:
        """The columns that it adds to a row, with their types."""

    def read(self, answer: Mapping[str, Any], row: Row, number: int) -> Score:
        """The score of a row. Raises AnswerUnusable for an answer that has none in it."""

    def figures(self) -> Figures:
        """An empty collection of what is reported of all rows."""

    def settings(self) -> Mapping[str, str]:
        """What was asked for, in words, for the report."""


@dataclass(frozen=True, slots=True)
class Score:
    """The columns that a row gets, and what else the figures are made of."""

    columns: Mapping[str, Any]
    beside: Mapping[str, Any] = field(default_factory=dict)


class AnswerUnusable(Exception):
    """A row was answered, and the answer is none that counts. `code` names the reason."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def context_of(prompt: Prompt, row: Row, number: int, *, truncate: bool) -> dict[str, Any]:
    """The fields of a body that say behind what a text is scored."""
    body = prompt.body(row, number=number)
    cut = {"truncate_prompt_tokens": -1} if truncate else {}
    return {**(body if prompt.chat else {"context": body["prompt"]}), **cut}


def describe(prompt: Prompt) -> dict[str, str]:
    system = {} if prompt.system is None else {"system message": prompt.system.text}
    return {**system, "message" if prompt.chat else "prompt": prompt.user.text}


@dataclass(frozen=True, slots=True)
class Gold:
    """The column that says which answer is right: by its text, or by its place from 0 where no
    answer is itself a number."""

    column: str

    def index_in(self, answers: Sequence[str], row: Row, number: int) -> int:
        """Raises DataInvalid when the column names none of the answers."""
        if self.column not in row:
            raise no_such_column(self.column, row, number, what="the right answer is to be in")
        value = row[self.column]
        text = "" if value is None else text_of(value).strip()
        bare = [answer.strip() for answer in answers]
        if text in bare:
            return bare.index(text)
        by_place = not any(answer.isdecimal() for answer in bare)
        if by_place and text.isdecimal() and int(text) < len(answers):
            return int(text)
        places = f" and no place of one, from 0 to {len(answers) - 1}" if by_place else ""
        raise DataInvalid(
            f"{place(number)}the column {self.column!r} has {text!r}, which is no answer{places}. "
            f"The answers are {', '.join(map(repr, bare))}."
        )


def check_distinct(labels: Sequence[str]) -> tuple[str, ...]:
    """Labels without the white space that sets them off. Raises UsageError for bad ones."""
    bare = tuple(label.strip() for label in labels)
    if len(bare) < 2:
        raise UsageError(f"{len(bare)} answers are not enough to choose from. Give two or more.")
    if "" in bare or len(set(bare)) < len(bare):
        raise UsageError(f"The answers must differ and none may be empty, but they are {bare}.")
    return bare
