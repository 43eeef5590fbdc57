"""What commands print on stdout: tables on a terminal, JSON lines elsewhere, or as was asked."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from gristmill.client.objects import APIObject


class Shape(StrEnum):
    """How objects are printed."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    ID = "id"


AsJson = Annotated[bool, typer.Option("--json", help="One JSON document.")]
IdsOnly = Annotated[bool, typer.Option("-q", "--quiet", help="Ids only, one a line.")]
Format = Annotated[
    Shape | None,
    typer.Option("--format", help="Default: table on a terminal, else one JSON object a line."),
]
Limit = Annotated[int, typer.Option("--limit", min=1, metavar="N", help="Most that are shown.")]
After = Annotated[str | None, typer.Option("--after", metavar="ID", help="Those behind this one.")]
All = Annotated[bool, typer.Option("--all", help="Without a limit.")]


def shape_of(format: Shape | None, *, as_json: bool, quiet: bool) -> Shape:
    if as_json:
        return Shape.JSON
    if quiet:
        return Shape.ID
    return format or (Shape.TABLE if sys.stdout.isatty() else Shape.JSONL)


def show_many(objects: Iterable[APIObject], columns: Mapping[str, str], shape: Shape) -> None:
    """`columns` are heading → field; fields may lead into objects, as `request_counts.total`."""
    if shape is Shape.JSON:
        listed = [one.to_dict() for one in objects]
        typer.echo(json.dumps({"object": "list", "data": listed}, ensure_ascii=False))
        return
    if shape is Shape.TABLE:
        rows = [[_shown(one, field) for field in columns.values()] for one in objects]
        print_table(list(columns), rows)
        return
    for one in objects:
        show_one(one, shape)


def show_one(found: APIObject, shape: Shape) -> None:
    if shape is Shape.ID:
        typer.echo(getattr(found, "id", ""))
    elif shape is Shape.TABLE:
        facts = [(name, _field(name, value)) for name, value in found.to_dict().items()]
        print_facts([(name, text) for name, text in facts if text])
    else:
        typer.echo(json.dumps(found.to_dict(), ensure_ascii=False))


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Plain columns, as wide as they must be; no colour, no frame."""
    lines = [headings, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    width = max((len(name) for name, _ in facts), default=0)
    for name, text in facts:
        typer.echo(f"{name.ljust(width)}  {text}")


def moment(at: int | None) -> str:
    """A time in UTC, as people read it."""
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at))


def _shown(found: object, field: str) -> str:
    value: Any = found
    for step in field.split("."):
        value = getattr(value, step, None)
    return _field(field, value)


def _field(name: str, value: Any) -> str:
    is_time = isinstance(value, int) and (name.endswith("_at") or name == "created")
    return moment(value) if is_time else _told(value)


def _told(value: object) -> str:
    if value is None or value == {} or value == []:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return json.dumps(value, ensure_ascii=False)
