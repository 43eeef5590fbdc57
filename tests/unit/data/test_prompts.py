"""Rows become prompts with an id, and results find their rows again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gristmill.data.join import (
    Outcome,
    check_no_clash,
    in_order_of,
    merged_by,
    outcome_of,
    receipt_of,
)
from gristmill.data.prompts import Prompt, RowIds
from gristmill.data.template import Template
from gristmill.errors import DataInvalid, UsageError

ROWS = [{"name": "r1", "text": "é"}, {"name": "r2", "text": "b"}]


def test_a_row_is_a_chat_or_a_plain_prompt() -> None:
    chat = Prompt(Template("Say {text}"), Template("You are {name}."))
    plain = Prompt(Template("{text}:"), chat=False)

    assert chat.body(ROWS[0]) == {
        "messages": [
            {"role": "system", "content": "You are r1."},
            {"role": "user", "content": "Say é"},
        ]
    }
    assert plain.body(ROWS[1]) == {"prompt": "b:"}


def test_rows_are_named_by_a_column_or_by_their_place() -> None:
    assert RowIds("name").of(ROWS[1], 2) == "r2"
    assert RowIds().of(ROWS[1], 2) == "row-2"


def test_rows_without_an_id_or_a_column_are_named() -> None:
    with pytest.raises(DataInvalid, match=r"Row 1: the ids .*'nr'.* 'name', 'text'"):
        RowIds("nr").of(ROWS[0], 1)
    with pytest.raises(DataInvalid, match="Row 1: the id in column 'text' is empty"):
        RowIds("text").of({"text": ""}, 1)
    with pytest.raises(DataInvalid, match=r"Row 2: .*'text'"):
        Prompt(Template("{text}")).body({"a": 1}, number=2)
    with pytest.raises(UsageError, match="system message"):
        Prompt(Template("a"), Template("b"), chat=False)


def line(custom_id: str, **body: Any) -> dict[str, Any]:
    response = {"status_code": 200, "body": body}
    return {"custom_id": custom_id, "response": response, "error": None}


def test_results_in_the_order_of_the_rows_are_joined_without_being_held() -> None:
    taken: list[str] = []

    def results(names: str) -> Iterator[dict[str, Any]]:
        for name in names:
            taken.append(name)
            yield line(name)

    joined = in_order_of(iter("abcdef"), results("abe"), results("cdf"))

    for expected in "abcdef":
        found = next(joined)
        assert found is not None and found["custom_id"] == expected
        assert len(taken) <= "abcdef".index(expected) + 3, "one line ahead of each file"


def test_rows_without_a_line_are_passed_over_without_holding_those_behind() -> None:
    taken: list[str] = []

    def results(names: str) -> Iterator[dict[str, Any]]:
        for name in names:
            taken.append(name)
            yield line(name)

    merged = merged_by(iter("abcdefgh"), results("cfh"), results("d"))

    assert [next(merged)["custom_id"] for _ in "cd"] == ["c", "d"]
    assert sorted(taken) == ["c", "d", "f"]
    assert [one["custom_id"] for one in merged] == ["f", "h"]
    with pytest.raises(DataInvalid, match="'a' come too early"):
        list(merged_by(iter("abc"), results("ba")))


def test_results_in_any_order_find_their_rows_and_a_missing_one_is_seen() -> None:
    joined = in_order_of(iter("abcd"), map(line, "dxb"), map(line, "a"))

    assert [None if one is None else one["custom_id"] for one in joined] == ["a", "b", None, "d"]


def test_B46_an_outcome_is_read_by_its_status_and_not_by_its_body() -> None:
    refused = {"error": {"message": "Too long.", "code": "context_length_exceeded"}}
    expired = {"code": "batch_expired", "message": "Too late."}

    assert outcome_of(line("a", x=1)).body == {"x": 1}
    assert outcome_of(
        {"response": {"status_code": 400, "body": refused}, "error": None}
    ) == Outcome(None, "context_length_exceeded", "Too long.")
    assert outcome_of({"response": None, "error": expired}) == Outcome(
        None, "batch_expired", "Too late."
    )
    assert outcome_of({"response": {"status_code": 500, "body": None}}).error_code == "status_500"
    assert outcome_of(None).error_code == "no_result"


def test_a_receipt_has_the_same_fields_in_every_row() -> None:
    short = receipt_of(outcome_of(line("a", gristmill={"seed": 5, "params": {"n": 1}})))

    assert short is not None and short["seed"] == 5 and short["itl_ms"] is None
    assert "params" not in short
    assert receipt_of(outcome_of(None)) is None


def test_a_column_of_a_name_that_results_need_is_refused() -> None:
    with pytest.raises(DataInvalid, match=r"the columns 'text'.*Rename yours"):
        check_no_clash(ROWS[0], ["text", "score"])
