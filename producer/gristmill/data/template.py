"""Texts with columns in them: `Template("Q: {question}\nA:").render(row)`.

Nothing is evaluated and no attribute is looked at: a field names a column, or leads into its value.

    {title}            the column `title`, or `my title`: a name may hold blanks
    {author.name}      a key of the object in the column `author`
    {choices.0}        an item of the list in the column `choices`
    {note?}            nothing where the column is empty (null)
    {{ and }}          braces
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.errors import DataInvalid, UsageError

_MAX_NAMES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class _Field:
    """What stands between two braces."""

    text: str
    optional: bool

    def value_in(self, row: Mapping[str, Any]) -> Any:
        """None where the row has nothing there. Raises LookupError when there is no such place."""
        if self.text in row:
            return row[self.text]
        column, *path = self.text.split(".")
        value = row[column]
        for step in path:
            if value is None:
                return None
            value = _inside(value, step)
        return value


class Template:
    """A text with fields. Raises UsageError for one that cannot be read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts: tuple[str | _Field, ...] = tuple(_parse(text))

    def __repr__(self) -> str:
        return f"Template({self.text!r})"

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields, as they are written, each once."""
        fields = (part.text for part in self._parts if isinstance(part, _Field))
        return tuple(dict.fromkeys(fields))

    def render(self, row: Mapping[str, Any], *, number: int | None = None) -> str:
        """The text for a row. `number` is the row's place in its data set, from 1, for errors.

        A string stands as it is, everything else as JSON. Raises DataInvalid for a column that
        the row does not have, and for one that is empty (null) unless its field ends in `?`.
        """
        try:
            return "".join(
                [
                    part if type(part) is str else self._text_of(part, row, number)  # type: ignore[arg-type]
                    for part in self._parts
                ]
            )
        except LookupError as error:
            raise self._no_such_field(row, number) from error

    def _text_of(self, field: _Field, row: Mapping[str, Any], number: int | None) -> str:
        # The most frequent case first: this runs for every field of millions of rows.
        value = row[field.text] if field.text in row else field.value_in(row)
        if type(value) is str:
            return value
        if value is None:
            if field.optional:
                return ""
            raise DataInvalid(
                f"{place(number)}the column {field.text!r} is empty (null). Fill it, leave the row "
                f"out, or write {{{field.text}?}} in the template for nothing in its place."
            )
        return text_of(value)

    def _no_such_field(self, row: Mapping[str, Any], number: int | None) -> DataInvalid:
        for part in self._parts:
            if isinstance(part, _Field):
                try:
                    part.value_in(row)
                except LookupError:
                    return no_such_column(part.text, row, number, what="the template uses")
        raise AssertionError("a field was not found a moment ago")


def text_of(value: object) -> str:
    """A value as it stands in a prompt: a string as it is, everything else as JSON."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)


def place(number: int | None) -> str:
    """How a message about a row begins."""
    return "" if number is None else f"Row {number}: "


def no_such_column(
    name: str, row: Mapping[str, Any], number: int | None, *, what: str
) -> DataInvalid:
    """`what` says who asked for the column."""
    return DataInvalid(
        f"{place(number)}{what} the column {name!r}, which is not there. "
        f"The columns are {names(row)}."
    )


def names(columns: Iterable[str]) -> str:
    """Columns for a message."""
    found = [repr(str(column)) for column in columns]
    rest = len(found) - _MAX_NAMES_SHOWN
    shown = ", ".join(found[:_MAX_NAMES_SHOWN]) or "none"
    return f"{shown} and {rest} more" if rest > 0 else shown


def _inside(value: object, step: str) -> Any:
    if isinstance(value, Mapping):
        return value[step]
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and step.isdecimal():
        return value[int(step)]
    raise LookupError(step)


def _parse(text: str) -> Iterator[str | _Field]:
    literal, at = "", 0
    while at < len(text):
        char = text[at]
        if char in "{}" and text[at : at + 2] == char * 2:
            literal, at = literal + char, at + 2
        elif char == "{":
            end = text.find("}", at)
            if end < 0:
                raise _bad(text, at, "is never closed. Write {{ for a brace that is text")
            if literal:
                yield literal
            yield _field(text, at, text[at + 1 : end])
            literal, at = "", end + 1
        elif char == "}":
            raise _bad(text, at, "was never opened. Write }} for a brace that is text")
        else:
            literal, at = literal + char, at + 1
    if literal:
        yield literal


def _field(text: str, at: int, inner: str) -> _Field:
    optional = inner.endswith("?")
    name = inner.removesuffix("?")
    if not name.strip() or "{" in name:
        raise _bad(text, at, "names no column. Write {column}, or {{ for a brace that is text")
    return _Field(name, optional)


def _bad(text: str, at: int, problem: str) -> UsageError:
    shown = text[max(0, at - 20) : at + 20]
    return UsageError(f"The template's brace at character {at + 1}, in {shown!r}, {problem}.")
