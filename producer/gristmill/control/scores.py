"""What a row of /v1/score gets: sums of log-probabilities, and what they are of, token by token.

Values are natural logarithms. One that is impossible (minus infinity), and all that follows from
it, is null.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gristmill.control.logprobs import name, rounded
from gristmill.scoring import ScoreType, Scoring, TextSize
from gristmill.types import Choice, Job, Prompt, RowResult


def scores(result: RowResult, job: Job) -> dict[str, Any]:
    """The part of the answer that depends on the row's type."""
    scoring = job.scoring
    assert scoring is not None, "a row of this endpoint says what it scores"
    scored = list(zip(job.prompts, result.choices, strict=True))
    if scoring.type is ScoreType.ROLLING:
        return {"type": scoring.type.value, **_rolled(scored, scoring)}
    entries = [
        {"index": i, **_continuation(prompt, choice, scoring.sizes[i], scoring.top_logprobs)}
        for i, (prompt, choice) in enumerate(scored)
    ]
    if scoring.type is ScoreType.LOGLIKELIHOOD:
        return {"type": scoring.type.value, **entries[0]}
    rules = ("sum_logprob", "logprob_per_token", "logprob_per_byte")
    best = {rule: _best([entry[rule] for entry in entries]) for rule in rules}
    return {"type": scoring.type.value, "choices": entries, "best": best}


def _continuation(prompt: Prompt, choice: Choice, size: TextSize, num_top: int) -> dict[str, Any]:
    """One continuation: its sum as it is, by tokens and by bytes.

    `is_greedy`: no token was likelier than the one that stands there, at any place.
    """
    total = math.fsum(at.logprob for at in choice.scored)
    return {
        "sum_logprob": _value(total),
        "logprob_per_token": _value(total / len(choice.scored)),
        "logprob_per_byte": _value(total / size.num_bytes) if size.num_bytes else None,
        "is_greedy": all(at.logprob >= at.top[0][1] for at in choice.scored),
        "num_tokens": len(choice.scored),
        "num_bytes": size.num_bytes,
        **_tokens([(prompt, choice)], num_top),
    }


def _rolled(scored: Sequence[tuple[Prompt, Choice]], scoring: Scoring) -> dict[str, Any]:
    """A whole text: perplexities as lm-evaluation-harness has them."""
    [size] = scoring.sizes
    total = math.fsum(at.logprob for _, choice in scored for at in choice.scored)
    num_tokens = sum(len(choice.scored) for _, choice in scored)

    def per(count: int) -> float | None:
        return _perplexity(-total / count) if count else None

    return {
        "sum_logprob": _value(total),
        "token_perplexity": per(num_tokens),
        "word_perplexity": per(size.num_words),
        "byte_perplexity": per(size.num_bytes),
        "bits_per_byte": _value(-total / size.num_bytes / math.log(2)) if size.num_bytes else None,
        "num_tokens": num_tokens,
        "num_words": size.num_words,
        "num_bytes": size.num_bytes,
        "num_windows": len(scored),
        **_tokens(scored, scoring.top_logprobs),
    }


def _tokens(scored: Sequence[tuple[Prompt, Choice]], num_top: int) -> dict[str, Any]:
    """Lists with one entry for each scored token; a text that is only part of a character is shown
    as its bytes."""
    ids = [token_id for prompt, _ in scored for token_id in prompt.scored_ids]
    token_bytes = {i: text for _, choice in scored for i, text in choice.token_bytes.items()}
    reports = [at for _, choice in scored for at in choice.scored]
    lists: dict[str, Any] = {
        "tokens": [name(token_bytes[token_id]) for token_id in ids],
        "token_ids": ids,
        "token_logprobs": [rounded(at.logprob) for at in reports],
    }
    if num_top:
        lists["top_logprobs"] = [
            [
                {"token": name(token_bytes[i]), "token_id": i, "logprob": rounded(value)}
                for i, value in at.top[:num_top]
            ]
            for at in reports
        ]
    return lists


def _best(values: Sequence[float | None]) -> int:
    """The largest value, the first among equals; null is less than all others."""
    return max(range(len(values)), key=lambda i: (_or_least(values[i]), -i))


def _or_least(value: float | None) -> float:
    return -math.inf if value is None else value


def _perplexity(mean: float) -> float | None:
    """exp(mean); null where it is too large for a number."""
    return _value(math.exp(mean)) if mean < 700 else None


def _value(value: float) -> float | None:
    """Twelve digits, for the sum of many values; null where a token was impossible."""
    return None if math.isinf(value) else float(f"{value:.12g}") + 0.0
