"""Judged scores: a model reads a rubric and answers with a number of a range, or with a label.

By default nothing is written: each allowed answer is scored behind the prompt, which gives its
exact probability and cannot give anything that is not allowed. With `reason_chars` the model first
writes why, in JSON that is held to its form (guided decoding); the answer is parsed and checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gristmill.data.prompts import CHAT_URL, Prompt
from gristmill.data.rows import Row
from gristmill.errors import UsageError
from gristmill.scores.choices import margin, softmax, surprise
from gristmill.scores.figures import Classes, Figures, Ratio
from gristmill.scores.reasoned import read_reasoned, reasoned_body
from gristmill.scores.task import (
    SCORE_URL,
    AnswerUnusable,
    Gold,
    Score,
    check_distinct,
    context_of,
    describe,
)


@dataclass(frozen=True, slots=True)
class Judge:
    """`answers` are what the rubric allows: numbers as texts, or labels.

    `gold` is a column with the right one. `reason_chars` is how long a reason may be, in
    characters; 0 asks for none.
    """

    prompt: Prompt
    answers: tuple[str, ...]
    gold: Gold | None = None
    reason_chars: int = 0
    truncate: bool = False

    name: ClassVar[str] = "judge"

    def __post_init__(self) -> None:
        check_distinct(self.answers)
        if self.reason_chars and not self.prompt.chat:
            raise UsageError("A reason is asked for in a chat. Leave it out of a plain prompt.")
        if self.reason_chars and self.truncate:
            raise UsageError("A prompt of which a reason is asked cannot be cut. Shorten it.")

    @property
    def url(self) -> str:
        return CHAT_URL if self.reason_chars else SCORE_URL

    @property
    def values(self) -> tuple[float, ...] | None:
        """The answers as numbers, where all of them are."""
        try:
            return tuple(float(answer) for answer in self.answers)
        except ValueError:
            return None

    def body(self, row: Row, number: int) -> dict[str, Any]:
        if self.gold is not None:
            self.gold.index_in(self.answers, row, number)
        if self.reason_chars:
            messages = self.prompt.body(row, number=number)
            return {**messages, **reasoned_body(self.answers, self.reason_chars)}
        return {
            "type": "choices",
            **context_of(self.prompt, row, number, truncate=self.truncate),
            "choices": list(self.answers),
        }

    def columns(self) -> Mapping[str, Any]:
        expected = {} if self.values is None else {"expected": float}
        reason = {"reason": str} if self.reason_chars else {}
        graded = {"is_correct": bool} if self.gold is not None else {}
        return {
            "prediction": str,
            **expected,
            "confidence": float,
            "margin": float,
            "probabilities": list[float],
            "allowed_mass": float,
            **reason,
            **graded,
        }

    def read(self, answer: Mapping[str, Any], row: Row, number: int) -> Score:
        reason = None
        if self.reason_chars:
            found = read_reasoned(answer, self.answers)
            best, reason = found.answer_idx, found.reason
            logprobs = [math.log(mass) if mass else None for mass in found.masses]
        else:
            logprobs = answer_logprobs(answer["choices"])
            best = max(range(len(logprobs)), key=lambda i: (_or_least(logprobs[i]), -i))
        possible = [logprob for logprob in logprobs if logprob is not None]
        if not possible:
            raise AnswerUnusable("no_answer_possible", "No allowed answer has any probability.")
        probabilities = softmax(logprobs)
        columns: dict[str, Any] = {
            "prediction": self.answers[best],
            **self._expected(probabilities),
            "confidence": probabilities[best],
            "margin": margin(probabilities),
            "probabilities": probabilities,
            "allowed_mass": min(1.0, math.fsum(map(math.exp, possible))),
            **({"reason": reason} if self.reason_chars else {}),
        }
        beside: dict[str, Any] = {"prediction_idx": best}
        if self.gold is not None:
            gold_idx = self.gold.index_in(self.answers, row, number)
            columns["is_correct"] = best == gold_idx
            beside |= {"gold_idx": gold_idx, "log_loss": surprise(logprobs, gold_idx)}
            if self.values is not None:
                beside["distance"] = abs(columns["expected"] - self.values[gold_idx])
        return Score(columns, beside)

    def _expected(self, probabilities: Sequence[float]) -> dict[str, float]:
        if self.values is None:
            return {}
        pairs = zip(self.values, probabilities, strict=True)
        return {"expected": math.fsum(value * share for value, share in pairs)}

    def figures(self) -> Figures:
        ratios = {}
        if self.gold is not None:
            ratios["agreement with the right answer"] = Ratio("is_correct")
            if self.values is not None:
                ratios["distance of the expected from the right answer"] = Ratio("distance")
            ratios["log loss of the right answer"] = Ratio("log_loss")
        if self.values is not None:
            ratios["expected answer"] = Ratio("expected")
        ratios["probability of the allowed answers together"] = Ratio("allowed_mass")
        return Figures(ratios, Classes(self.answers))

    def settings(self) -> Mapping[str, str]:
        return {
            **describe(self.prompt),
            "answers": " | ".join(self.answers),
            **({"reason": f"up to {self.reason_chars} characters"} if self.reason_chars else {}),
            **({} if self.gold is None else {"right answer": f"column {self.gold.column}"}),
        }


def parse_answers(text: str) -> tuple[str, ...]:
    """`1-5` is 1, 2, 3, 4, 5; `good,fair,bad` are those. Raises UsageError."""
    low, dash, high = text.strip().partition("-")
    if dash and low.strip().isdecimal() and high.strip().isdecimal():
        first, last = int(low), int(high)
        if not first < last <= first + 100:
            raise UsageError(
                f"The answers {text!r} are no range of 2 to 101 numbers. Write 1-5, or labels: "
                "good,fair,bad."
            )
        return tuple(str(value) for value in range(first, last + 1))
    return check_distinct(text.split(","))


def answer_logprobs(entries: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """ln of the probability that the model's answer is each one, and does not go on to be another.

    Where 1 and 10 are allowed and 10 begins with the token of 1, what is 10 is not 1. Null is an
    impossible answer.
    """
    logprobs: list[float | None] = []
    for entry in entries:
        ids = entry["token_ids"]
        goes_on: dict[int, float] = {}
        for other in entries:
            other_ids = other["token_ids"]
            if len(other_ids) > len(ids) and other_ids[: len(ids)] == ids:
                logprob = other["token_logprobs"][len(ids)]
                goes_on[other_ids[len(ids)]] = 0.0 if logprob is None else math.exp(logprob)
        total = entry["sum_logprob"]
        ends = 1.0 - math.fsum(goes_on.values())
        logprobs.append(None if total is None or ends <= 0 else total + math.log(ends))
    return logprobs


def _or_least(logprob: float | None) -> float:
    return -math.inf if logprob is None else logprob
