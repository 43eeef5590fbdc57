"""Checks a whole input file without running it: what `gristmill run --dry-run` shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import BinaryIO

from gristmill.models import Model
from gristmill.requests.prepare import Refusal, Window, prepare
from gristmill.requests.tokenise import Tokeniser
from gristmill.settings import Settings
from gristmill.types import Endpoint, Job

#: Lines that are named of each group.
_MAX_LINES = 20
_INDEX = re.compile(r"\[\d+\]")


@dataclass(frozen=True, slots=True)
class RefusedGroup:
    """Rows refused for the same reason, with the message of the first and its physical line.

    `param` has no indices: messages[].content stands for all messages. It is None, and the code
    "other", for the rows beyond `settings.max_errors_shown` groups. A grammar that does not compile
    is a reason of its own. `lines` are the first of the rows' physical lines.
    """

    code: str
    param: str | None
    message: str
    first_line: int
    num_rows: int
    lines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a file holds. Tokens count every accepted row, also those that share a Job.

    `max_output_tokens` is an upper bound: the sum of what each row may generate. `num_merged`
    rows cost nothing, since another row of the file gets the same answer.
    """

    endpoint: Endpoint | None = None
    input_bytes: int = 0
    num_rows: int = 0
    num_refused: int = 0
    num_merged: int = 0
    prompt_tokens: int = 0
    max_output_tokens: int = 0
    longest_prompt: int = 0
    num_with_grammar: int = 0
    num_with_tools: int = 0
    refused: tuple[RefusedGroup, ...] = ()


_Key = tuple[str, str | None, str | None]
_Groups = dict[_Key, RefusedGroup]


def check(
    source: BinaryIO,
    *,
    model: Model,
    settings: Settings,
    endpoint: Endpoint | None = None,
    tokeniser: Tokeniser | None = None,
    on_progress: Callable[[CheckReport], None] | None = None,
) -> CheckReport:
    """Reads all of `source` in constant memory. `on_progress` gets the report so far.

    Raises BatchInvalid as prepare() does. Nothing here depends on the seed of the batch, save that
    sampled rows are never merged unless their own seeds agree.
    """
    report = CheckReport(endpoint)
    groups: _Groups = {}
    windows = prepare(
        source,
        model=model,
        settings=settings,
        batch_seed=b"",
        endpoint=endpoint,
        tokeniser=tokeniser,
    )
    for window in windows:
        for refusal in window.refused:
            _count(groups, refusal, max_groups=settings.max_errors_shown)
        report = _add(report, window, groups)
        if on_progress is not None:
            on_progress(report)
    return report


def _add(
    report: CheckReport,
    window: Window,
    groups: _Groups,
) -> CheckReport:
    return replace(
        report,
        endpoint=window.endpoint,
        input_bytes=window.cursor.byte_offset,
        num_rows=report.num_rows + window.num_rows,
        num_refused=report.num_refused + len(window.refused),
        num_merged=report.num_merged + sum(len(job.rows) - 1 for job in window.jobs),
        prompt_tokens=report.prompt_tokens + window.prompt_tokens,
        max_output_tokens=report.max_output_tokens
        + sum(_max_output_tokens(job) for job in window.jobs),
        longest_prompt=max(
            report.longest_prompt,
            *(len(p.token_ids) for job in window.jobs for p in job.prompts),
            0,
        ),
        num_with_grammar=report.num_with_grammar
        + sum(len(job.rows) for job in window.jobs if job.params.grammar),
        num_with_tools=report.num_with_tools
        + sum(len(job.rows) for job in window.jobs if job.params.tools),
        refused=tuple(sorted(groups.values(), key=lambda group: group.first_line)),
    )


def _max_output_tokens(job: Job) -> int:
    return len(job.rows) * len(job.prompts) * job.params.n * job.params.max_tokens


def _count(groups: _Groups, refusal: Refusal, *, max_groups: int) -> None:
    param = refusal.error.param and _INDEX.sub("[]", refusal.error.param)
    code = refusal.error.code
    # Each grammar fails in a way of its own; other refusals of a parameter are of one kind.
    key: _Key = (code, param, refusal.error.message if code == "invalid_grammar" else None)
    if key not in groups and len(groups) >= max_groups:
        code, param = "other", None
        key = (code, param, None)
    group = groups.get(key) or RefusedGroup(code, param, refusal.error.message, refusal.line_no, 0)
    lines = (*group.lines, refusal.line_no)[:_MAX_LINES]
    groups[key] = replace(group, num_rows=group.num_rows + 1, lines=lines)
