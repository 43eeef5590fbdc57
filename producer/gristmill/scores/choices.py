"""Multiple choice: which of several texts a model finds likeliest behind a prompt, and how sure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from gristmill.data.prompts import Prompt
from gristmill.data.rows import Row
from gristmill.data.template import Template, no_such_column, place, text_of
from gristmill.errors import DataInvalid, UsageError
from gristmill.scores.figures import Classes, Figures, Ratio
from gristmill.scores.task import (
    SCORE_URL,
    AnswerUnusable,
    Gold,
    Score,
    check_distinct,
    context_of,
    describe,
)


class Rule(StrEnum):
    """By what choices are compared: their log-probability, or its mean by token or by byte.

    Longer choices are less probable as a whole; the means make up for that. With SUM the
    probabilities are the model's own among the choices, with a mean they are a softmax of means.
    """

    SUM = "sum"
    TOKEN = "token"
    BYTE = "byte"

    @property
    def field(self) -> str:
        return "sum_logprob" if self is Rule.SUM else f"logprob_per_{self.value}"


@dataclass(frozen=True, slots=True)
class Choices:
    """`choices` are templates, or with `column` the items of a list in that column.

    White space at the end of the prompt belongs to each choice. Without `gold` nothing is graded.
    With `truncate`, a prompt that is too long loses its beginning; else its row has an error.
    """

    prompt: Prompt
    choices: tuple[Template, ...] = ()
    column: str | None = None
    gold: Gold | None = None
    rule: Rule = Rule.SUM
    truncate: bool = False

    name: ClassVar[str] = "choices"
    url: ClassVar[str] = SCORE_URL

    def __post_init__(self) -> None:
        if bool(self.choices) == (self.column is not None):
            raise UsageError(
                "Name the choices once: each as a text (which may hold columns), or the column "
                "that has a list of them."
            )
        if self.labels is not None:
            check_distinct(self.labels)
        elif self.column is None and len(self.choices) < 2:
            raise UsageError("One choice is not enough to choose from. Give two or more.")

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The choices where they are the same in all rows, without the space before them."""
        if self.column is not None or any(choice.fields for choice in self.choices):
            return None
        return tuple(choice.render({}).strip() for choice in self.choices)

    def body(self, row: Row, number: int) -> dict[str, Any]:
        choices = self._of(row, number)
        if self.gold is not None:
            self.gold.index_in(choices, row, number)
        return {
            "type": "choices",
            **context_of(self.prompt, row, number, truncate=self.truncate),
            "choices": choices,
        }

    def _of(self, row: Row, number: int) -> list[str]:
        if self.column is None:
            return [choice.render(row, number=number) for choice in self.choices]
        if self.column not in row:
            raise no_such_column(self.column, row, number, what="the choices are to be in")
        found = row[self.column]
        if not isinstance(found, Sequence) or isinstance(found, str) or len(found) < 2:
            raise DataInvalid(
                f"{place(number)}the column {self.column!r} is to hold a list of two choices or "
                f"more, and it has {text_of(found)[:80]!r}. A CSV file has no lists: name columns "
                "as choices, such as {a} and {b}."
            )
        return [text_of(choice) for choice in found]

    def columns(self) -> Mapping[str, Any]:
        graded = {"is_correct": bool} if self.gold is not None else {}
        return {
            "prediction": str,
            "prediction_idx": int,
            "confidence": float,
            "margin": float,
            "probabilities": list[float],
            "logprobs": list[float],
            **graded,
        }

    def read(self, answer: Mapping[str, Any], row: Row, number: int) -> Score:
        choices = self._of(row, number)
        entries = answer["choices"]
        values = [entry[self.rule.field] for entry in entries]
        probabilities = softmax(values)
        best = answer["best"][self.rule.field]
        columns: dict[str, Any] = {
            "prediction": choices[best].strip(),
            "prediction_idx": best,
            "confidence": probabilities[best],
            "margin": margin(probabilities),
            "probabilities": probabilities,
            "logprobs": [entry["sum_logprob"] for entry in entries],
        }
        if self.gold is None:
            return Score(columns)
        gold_idx = self.gold.index_in(choices, row, number)
        columns["is_correct"] = best == gold_idx
        return Score(
            columns,
            {
                "gold_idx": gold_idx,
                "log_loss": surprise(values, gold_idx),
                **{f"by_{rule}": answer["best"][rule.field] == gold_idx for rule in Rule},
            },
        )

    def figures(self) -> Figures:
        ratios = {"margin": Ratio("margin")}
        if self.gold is not None:
            others = [rule for rule in Rule if rule is not self.rule]
            ratios = {
                "accuracy": Ratio("is_correct"),
                **{f"accuracy, {_WORDS[rule]}": Ratio(f"by_{rule}") for rule in others},
                "log loss of the right answer": Ratio("log_loss"),
                **ratios,
            }
        return Figures(ratios, Classes(self.labels))

    def settings(self) -> Mapping[str, str]:
        choices = " | ".join(choice.text for choice in self.choices)
        return {
            **describe(self.prompt),
            "choices": choices if self.column is None else f"the list in column {self.column}",
            "compared": _WORDS[self.rule],
            **({} if self.gold is None else {"right answer": f"column {self.gold.column}"}),
        }


_WORDS = {
    Rule.SUM: "by log-probability",
    Rule.TOKEN: "by log-probability per token",
    Rule.BYTE: "by log-probability per byte",
}


def softmax(values: Sequence[float | None]) -> list[float]:
    """Shares of exp(value); null is an impossible choice. Raises AnswerUnusable if all are."""
    possible = [value for value in values if value is not None]
    if not possible:
        raise AnswerUnusable("no_choice_possible", "The model gives no choice any probability.")
    most = max(possible)
    weights = [0.0 if value is None else math.exp(value - most) for value in values]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def margin(probabilities: Sequence[float]) -> float:
    """How far the likeliest is ahead of the next."""
    first, second = sorted(probabilities, reverse=True)[:2]
    return first - second


def surprise(values: Sequence[float | None], idx: int) -> float | None:
    """-ln of the share that `softmax` gives to one of them; null where that one is impossible.

    Not the logarithm of that share, which is 0 where it is below what a float holds: those rows
    cost the most, and may not be missing in a mean.
    """
    value = values[idx]
    if value is None:
        return None
    possible = [one for one in values if one is not None]
    most = max(possible)
    return most - value + math.log(math.fsum(math.exp(one - most) for one in possible))
