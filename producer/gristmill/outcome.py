"""What came of a row, in small values: tokens used, log-probabilities, times, an error.

types.py has them too, beside all other nouns of the contract.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one row. `cached_tokens` of the prompt were found in the prefix cache."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
        )

    def times(self, count: int) -> Usage:
        return Usage(
            self.prompt_tokens * count, self.completion_tokens * count, self.cached_tokens * count
        )


@dataclass(frozen=True, slots=True)
class RowError:
    """Why a row has no answer. With `status_code` it is an HTTP-like refusal, else never run."""

    code: str
    message: str
    param: str | None = None
    status_code: int | None = None
    type: str = "invalid_request_error"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log-probabilities at one token, in the model's unmodified distribution.

    Temperature, penalties and all other parameters leave them alone, so that they compare between
    rows. `top` has the likeliest tokens, likeliest first, whether or not the sampled one is among
    them; impossible tokens are left out, so every value is finite. Values are exact in 32 bits.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Times:
    """How long a row took, in seconds; of several Choices the longest.

    `queue_s` from its entry into the engine to its first step, `prefill_s` from there to its first
    token or the end of its prompt (None where an earlier Attempt had the first token), `decode_s`
    from there to the last token.
    """

    queue_s: float = 0.0
    prefill_s: float | None = None
    decode_s: float = 0.0
