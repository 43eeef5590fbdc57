"""How likely a model finds texts that are given: a target behind a prompt, or a whole text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gristmill.data.prompts import Prompt
from gristmill.data.rows import Row
from gristmill.data.template import Template
from gristmill.errors import UsageError
from gristmill.scores.figures import Figures, Ratio, bits, perplexity
from gristmill.scores.task import SCORE_URL, Score, context_of, describe


@dataclass(frozen=True, slots=True)
class Loglikelihood:
    """The log-probability of `target` behind the prompt.

    With `truncate`, a prompt that is too long loses its beginning; else its row has an error.
    """

    prompt: Prompt
    target: Template
    truncate: bool = False

    name: ClassVar[str] = "loglikelihood"
    url: ClassVar[str] = SCORE_URL

    def __post_init__(self) -> None:
        _check_has_columns(self.target, "target")

    def body(self, row: Row, number: int) -> dict[str, Any]:
        return {
            "type": "loglikelihood",
            **context_of(self.prompt, row, number, truncate=self.truncate),
            "continuation": self.target.render(row, number=number),
        }

    def columns(self) -> Mapping[str, Any]:
        return {
            "logprob": float,
            "logprob_per_token": float,
            "logprob_per_byte": float,
            "is_greedy": bool,
            "num_tokens": int,
        }

    def read(self, answer: Mapping[str, Any], row: Row, number: int) -> Score:
        return _score(answer, self.columns())

    def figures(self) -> Figures:
        return Figures(
            ratios={
                "log-probability of a target": Ratio("logprob"),
                "log-probability of a token": Ratio("logprob", "num_tokens"),
                "perplexity of a token": Ratio("logprob", "num_tokens", perplexity),
                "targets that greedy decoding would write": Ratio("is_greedy"),
            }
        )

    def settings(self) -> Mapping[str, str]:
        return {**describe(self.prompt), "target": self.target.text}


@dataclass(frozen=True, slots=True)
class Perplexity:
    """The perplexity of `text`, read in windows where it is longer than the model's."""

    text: Template
    window: int | None = None
    stride: int | None = None

    name: ClassVar[str] = "perplexity"
    url: ClassVar[str] = SCORE_URL

    def __post_init__(self) -> None:
        _check_has_columns(self.text, "text")

    def body(self, row: Row, number: int) -> dict[str, Any]:
        given = {"window": self.window, "stride": self.stride}
        return {
            "type": "rolling",
            "text": self.text.render(row, number=number),
            **{name: value for name, value in given.items() if value is not None},
        }

    def columns(self) -> Mapping[str, Any]:
        return {
            "logprob": float,
            "token_perplexity": float,
            "word_perplexity": float,
            "byte_perplexity": float,
            "bits_per_byte": float,
            "num_tokens": int,
            "num_words": int,
            "num_bytes": int,
        }

    def read(self, answer: Mapping[str, Any], row: Row, number: int) -> Score:
        return _score(answer, self.columns())

    def figures(self) -> Figures:
        return Figures(
            ratios={
                "perplexity of a token": Ratio("logprob", "num_tokens", perplexity),
                "perplexity of a word": Ratio("logprob", "num_words", perplexity),
                "perplexity of a byte": Ratio("logprob", "num_bytes", perplexity),
                "bits of a byte": Ratio("logprob", "num_bytes", bits),
            }
        )

    def settings(self) -> Mapping[str, str]:
        given = {"text": self.text.text, "window": self.window, "stride": self.stride}
        return {name: str(value) for name, value in given.items() if value is not None}


def _score(answer: Mapping[str, Any], columns: Iterable[str]) -> Score:
    """The answer's fields under the names of columns."""
    found = {"logprob": answer["sum_logprob"], **answer}
    return Score({name: found[name] for name in columns})


def _check_has_columns(template: Template, what: str) -> None:
    if not template.fields:
        raise UsageError(
            f"The {what} {template.text!r} names no column, so it would be the same in every row. "
            f"Write a column between braces, such as {{{template.text.strip() or what}}}."
        )
