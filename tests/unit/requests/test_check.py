"""The report of a dry run."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

from gristmill.errors import BatchInvalid
from gristmill.requests.check import CheckReport, RefusedGroup, check
from gristmill.requests.input_file import STRETCH_MAX_ROWS
from gristmill.settings import Settings
from gristmill.types import Endpoint

MakeLine = Callable[..., str]


@pytest.fixture
def check_lines(make_model: Any) -> Callable[..., CheckReport]:
    def run(lines: list[str], **options: Any) -> CheckReport:
        return check(
            io.BytesIO("\n".join(lines).encode()),
            **{"model": make_model(), "settings": Settings(), **options},
        )

    return run


def test_a_report_counts_rows_tokens_and_merged_rows(
    check_lines: Any, completion: MakeLine
) -> None:
    lines = [
        completion("a", [1, 2, 3], max_tokens=10, temperature=0),
        completion("b", [1, 2, 3], max_tokens=10, temperature=0),
        completion("c", [1, 2, 3, 4], max_tokens=5),
        "",
    ]

    report = check_lines(lines)

    assert report == CheckReport(
        endpoint=Endpoint.COMPLETIONS,
        input_bytes=len("\n".join(lines)),
        num_rows=3,
        num_refused=0,
        num_merged=1,
        prompt_tokens=10,
        max_output_tokens=25,
        longest_prompt=4,
        refused=(),
    )


def test_refused_rows_are_grouped_by_reason(check_lines: Any, chat: MakeLine) -> None:
    def named(custom_id: str, before: int) -> str:
        user = {"role": "user", "content": "hi"}
        return chat(custom_id, messages=[*[user] * before, {**user, "name": "x"}])

    report = check_lines(
        ["", chat("a", store=True), named("b", 0), chat("c"), named("d", 3), chat("e", store=True)]
    )

    assert report.num_refused == 4 and report.num_rows == 5
    assert [(g.code, g.param, g.first_line, g.num_rows) for g in report.refused] == [
        ("unsupported_parameter", "store", 2, 2),
        ("unsupported_parameter", "messages[].name", 3, 2),
    ]
    assert "messages[0].name" in report.refused[1].message


def test_the_number_of_groups_is_bounded(check_lines: Any, chat: MakeLine) -> None:
    lines = [chat(f"r{n}", **{f"field{n}": 1}) for n in range(20)]

    report = check_lines(lines, settings=Settings(max_errors_shown=3))

    assert [group.param for group in report.refused] == ["field0", "field1", "field2", None]
    assert isinstance(report.refused[3], RefusedGroup)
    assert (report.refused[3].code, report.refused[3].num_rows) == ("other", 17)


def test_grammars_that_do_not_compile_are_listed_each_by_its_lines(
    check_lines: Any, chat: MakeLine
) -> None:
    negated, unclosed = {"guided_json": {"not": {}}}, {"guided_regex": "(a"}
    lines = [chat("a", **negated), chat("b", **unclosed), chat("c", guided_regex="a")]
    lines += [chat("d", **negated), chat("e", guided_regex="(b")]

    report = check_lines(lines)

    assert [(g.code, g.param, g.lines) for g in report.refused] == [
        ("invalid_grammar", "guided_json", (1, 4)),
        ("invalid_grammar", "guided_regex", (2,)),
        ("invalid_grammar", "guided_regex", (5,)),
    ]
    assert "not" in report.refused[0].message and "unclosed" in report.refused[1].message
    assert (report.num_with_grammar, report.num_with_tools) == (1, 0)


def test_a_file_whose_rows_are_all_refused_has_a_report(check_lines: Any, chat: MakeLine) -> None:
    report = check_lines([chat("a", store=True)])

    assert (report.num_rows, report.num_refused, report.longest_prompt) == (1, 1, 0)


def test_progress_is_the_report_so_far(check_lines: Any, completion: MakeLine) -> None:
    lines = [completion(f"r{n}", [1]) for n in range(STRETCH_MAX_ROWS + 5)]
    seen: list[CheckReport] = []

    report = check_lines(lines, on_progress=seen.append)

    assert [one.num_rows for one in seen] == [STRETCH_MAX_ROWS, STRETCH_MAX_ROWS + 5]
    assert seen[-1] == report
    assert seen[0].input_bytes == len("\n".join(lines[:STRETCH_MAX_ROWS])) + 1


def test_a_file_that_fails_as_a_whole_raises(check_lines: Any) -> None:
    with pytest.raises(BatchInvalid):
        check_lines(["null"])
