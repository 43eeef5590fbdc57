"""What a SCORE Job scores, and so what is made of its log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ScoreType(StrEnum):
    """One continuation of a context, several of one context, or a whole text in windows."""

    LOGLIKELIHOOD = "loglikelihood"
    CHOICES = "choices"
    ROLLING = "rolling"


@dataclass(frozen=True, slots=True)
class TextSize:
    """How long a scored text is, by which its sum is normalised.

    Bytes are those of UTF-8: of a continuation without the white space that it begins with, which
    only sets it off from its context. Words are what white space separates.
    """

    num_bytes: int
    num_words: int


@dataclass(frozen=True, slots=True)
class Scoring:
    """`sizes` has one entry for each prompt of the Job, but one for all of them if `type` is
    ROLLING, whose prompts are windows of one text. `top_logprobs` likeliest tokens are shown beside
    each scored one."""

    type: ScoreType
    sizes: tuple[TextSize, ...]
    top_logprobs: int = 0
