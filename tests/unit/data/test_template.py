"""Templates over columns: what they render, and what they say of rows that do not fit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.data import Template
from gristmill.errors import DataInvalid, UsageError

ROW: dict[str, Any] = {
    "text": "naïve {text}",
    "my title": "T",
    "a.b": "plain",
    "a": {"b": "inner", "list": [1, "two", None]},
    "number": 3.5,
    "flag": True,
    "empty": None,
}


@pytest.mark.parametrize(
    ("template", "rendered"),
    [
        ("{text}", "naïve {text}"),
        ("<{my title}>", "<T>"),
        ("{number} {flag}", "3.5 true"),
        ("{a.b}", "plain"),  # a column of that name comes first
        ("{a.list.1}", "two"),
        ("{a.list}", '[1, "two", null]'),
        ("{{text}} {{{text}}}", "{text} {naïve {text}}"),
        ("[{empty?}{text?}]", "[naïve {text}]"),
        ("no column", "no column"),
        ("", ""),
    ],
)
def test_a_template_renders_values_as_text_or_json(template: str, rendered: str) -> None:
    assert Template(template).render(ROW) == rendered


@given(st.dictionaries(st.text("abc", min_size=1), st.text()))
def test_what_a_value_says_is_never_read_as_a_template(row: dict[str, str]) -> None:
    template = Template("|".join(f"{{{name}}}" for name in row))

    assert template.render(row) == "|".join(row.values())


@pytest.mark.parametrize(
    ("template", "what"),
    [
        ("{titel}", "Row 7: .*'titel'.* not there. The columns are 'text', 'my title'"),
        ("{titel?}", "'titel'.* not there"),
        ("{a.c}", "'a.c'"),
        ("{a.list.9}", "'a.list.9'"),
        ("{text.upper}", "'text.upper'"),
        ("{a.__class__}", "'a.__class__'"),
        ("{empty}", r"Row 7: the column 'empty' is empty \(null\).*\{empty\?\}"),
        ("{a.list.2}", "'a.list.2' is empty"),
    ],
)
def test_a_row_that_does_not_fit_is_named_with_the_column_and_the_way_out(
    template: str, what: str
) -> None:
    with pytest.raises(DataInvalid, match=what):
        Template(template).render(ROW, number=7)


@pytest.mark.parametrize("template", ["{", "a {b", "}", "a} b", "{}", "{ }", "{?}", "{a{b}}"])
def test_a_template_whose_braces_do_not_match_is_refused_at_once(template: str) -> None:
    with pytest.raises(UsageError, match=r"brace at character \d"):
        Template(template)


def test_the_fields_of_a_template_are_known_before_any_row() -> None:
    assert Template("{b} {a} {b} {{c}}").fields == ("b", "a")
