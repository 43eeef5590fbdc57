"""What Jobs need of a machine: how long their rows may get, and which features they ask for.

The control side routes by it, and a Worker looks whether a Shard is for it. Only the standard
library is imported here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from gristmill.fleet import SMALLEST_ROW_CLASS, Feature, row_class
from gristmill.types import Job, JobKind


@dataclass(frozen=True, slots=True)
class RowNeeds:
    """Of the rows of one Job, or of several.

    `max_row_tokens` is the longest row, prompt and all of the answer that it may have;
    `least_row_tokens` what cannot be cut: the longest prompt, with one token of answer if any.
    """

    max_row_tokens: int = 0
    least_row_tokens: int = 0
    features: frozenset[str] = frozenset()


_KINDS = {
    JobKind.GENERATE: Feature.GENERATE,
    JobKind.SCORE: Feature.SCORE,
    JobKind.EMBED: Feature.EMBED,
}


def needs_of(job: Job) -> RowNeeds:
    """What a machine must have to run the Job to its end, however long its answer gets."""
    longest = max((len(prompt.token_ids) for prompt in job.prompts), default=0)
    generates = job.kind is JobKind.GENERATE
    return RowNeeds(
        longest + (job.params.max_tokens if generates else 0),
        longest + (1 if generates else 0),
        _features_of(job),
    )


def needs_together(needs: Iterable[RowNeeds]) -> RowNeeds:
    """Of a machine that can run each of them."""
    found = list(needs)
    return RowNeeds(
        max((one.max_row_tokens for one in found), default=0),
        max((one.least_row_tokens for one in found), default=0),
        frozenset().union(*(one.features for one in found)),
    )


def class_of(needs: RowNeeds) -> tuple[int, int, frozenset[str]]:
    """What Jobs that travel together have in common: the classes of how long a row may get and of
    how long a prompt is, and the features."""
    return row_class(needs.max_row_tokens), row_class(needs.least_row_tokens), needs.features


def size_class(needs: RowNeeds) -> str:
    """The name of the class, as '8192/1024/generate+grammar'."""
    row, prompt, features = class_of(needs)
    return f"{row}/{prompt}/{'+'.join(sorted(features))}"


@lru_cache(maxsize=1024)
def features_in(class_name: str) -> frozenset[str]:
    """The features that a size class names; none for Shards of an earlier version."""
    return frozenset(filter(None, class_name.rpartition("/")[2].split("+")))


@lru_cache(maxsize=1024)
def least_in(class_name: str) -> int:
    """What the shortest prompt of a size class may take; 0 for Shards of an earlier version."""
    of_prompts = class_name.split("/")[1] if "/" in class_name else "0"
    return int(of_prompts) // 2 + 1 if int(of_prompts) > SMALLEST_ROW_CLASS else 0


def _features_of(job: Job) -> frozenset[str]:
    return _features(
        job.kind,
        any(prompt.scored_from is not None for prompt in job.prompts),
        job.params.logprobs is not None,
        job.params.grammar is not None,
    )


@lru_cache(maxsize=64)
def _features(
    kind: JobKind,
    scores: bool,
    reports: bool,
    is_constrained: bool,
) -> frozenset[str]:
    features = {_KINDS[kind].value}
    if scores:
        features.add(Feature.SCORE.value)
    if kind is JobKind.GENERATE and reports:
        features.add(Feature.LOGPROBS.value)
    if kind is JobKind.GENERATE and is_constrained:
        features.add(Feature.GRAMMAR.value)
    return frozenset(features)
