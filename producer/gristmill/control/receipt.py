"""The receipt of a row: what computed it, with which parameters, and how long it took.

With it and the line of the input the row can be computed again (`gristmill replay`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from operator import attrgetter
from typing import Any

from gristmill.repetition import find_repetition
from gristmill.types import Choice, Job, JobKind, ModelPin, RowResult, SamplingParams

#: All parameters but the seed, which may be another one for each row.
_NAMES = tuple(field.name for field in fields(SamplingParams) if field.name != "seed")
_values = attrgetter(*_NAMES)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a result comes from. `attempt_count` is how many Attempts its Shard had by then.

    `template_hash` is that of the chat template, empty where none was used.
    """

    attempt_id: str
    attempt_count: int = 1
    engine_version: str = ""
    template_hash: str = ""


def receipt(model: ModelPin, job: Job, result: RowResult, origin: Origin) -> dict[str, Any]:
    """The field `gristmill` of an answer. Times are milliseconds; null where there is none."""
    return {
        "attempt": origin.attempt_id,
        "attempt_count": origin.attempt_count,
        "model_revision": model.revision,
        "tokenizer_hash": model.tokenizer_hash,
        "template_hash": origin.template_hash or None,
        "engine_version": origin.engine_version or None,
        "dtype": model.dtype,
        "computed_for_rows": len(job.rows),
        "cached_tokens": result.usage.cached_tokens,
        "queue_ms": _ms(result.times.queue_s),
        "prefill_ms": _ms(result.times.prefill_s),
        "decode_ms": _ms(result.times.decode_s),
        "ttft_ms": _ms(result.ttft_s),
        "itl_ms": _ms(result.itl_s),
        "seed": job.params.seed,
        "params": _params(job),
        **_own_of_kind(job, result),
    }


def _own_of_kind(job: Job, result: RowResult) -> dict[str, Any]:
    """Scores and vectors may be of prompts of which a part was left out, if the row allowed it."""
    if job.embedding is None and job.scoring is None:
        return _of_tokens(result.choices) if job.kind is JobKind.GENERATE else {}
    dropped = [prompt.num_dropped for prompt in job.prompts]
    return {"dropped_tokens": dropped if any(dropped) else []}


def _of_tokens(choices: Iterable[Choice]) -> dict[str, Any]:
    """Hashes of the generated ids, which tell apart what reads the same, and loops."""
    ids = [choice.token_ids for choice in choices]
    loops = [(i, find_repetition(of_choice)) for i, of_choice in enumerate(ids)]
    return {
        "token_hashes": [
            hashlib.sha256((b"%d," * len(of_choice) % of_choice)[:-1]).hexdigest()[:16]
            for of_choice in ids
        ],
        "repetition": [{"choice": i, **asdict(loop)} for i, loop in loops if loop],
    }


def _params(job: Job) -> dict[str, Any]:
    """Every parameter as it was in effect, defaults too; the seed stands beside them."""
    if job.embedding is not None:
        embedding = asdict(job.embedding)
        is_base64 = embedding.pop("base64")
        return {**embedding, "encoding_format": "base64" if is_base64 else "float"}
    if job.scoring is not None:
        return {"type": job.scoring.type.value, "top_logprobs": job.scoring.top_logprobs}
    return _sampling(_values(job.params))


@lru_cache(maxsize=256)
def _sampling(values: tuple[Any, ...]) -> dict[str, Any]:
    """Most rows of a batch ask for the same; nobody changes what is returned."""
    params = SamplingParams(**dict(zip(_NAMES, values, strict=True)))
    effective = asdict(params)
    del effective["seed"]
    if params.grammar is not None:  # which may be as long as the answers of a hundred rows
        digest = hashlib.sha256(params.grammar.text.encode()).hexdigest()
        kind, strict = params.grammar.kind.value, params.grammar.strict
        effective["grammar"] = {"kind": kind, "sha256": digest, "strict": strict}
    effective["logit_bias"] = {str(token_id): bias for token_id, bias in params.logit_bias}
    return effective


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
