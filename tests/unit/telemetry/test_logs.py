"""The log of a process: lines of JSON for machines, text for people, from the same calls."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from gristmill.process.logs import JsonLines


def line_of(msg: str, *args: Any, name: str = "gristmill.part", **more: Any) -> dict[str, Any]:
    record = logging.LogRecord(name, logging.WARNING, "file", 1, msg, args, None)
    record.__dict__.update(more)
    text = JsonLines().format(record)
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize(
    ("msg", "args", "event", "known"),
    [
        ("worker ended", (), "worker ended", {}),
        ("shard rung again batch=%s shard=%d", ("b", 3), "shard rung again", {"shard": 3}),
        ("health url=%s/readyz", ("http://h",), "health", {"url": "http://h/readyz"}),
        ("ready version=%s-%s", ("a", 1), "ready", {"version": "a-1"}),
        (
            "over reason=%s %s",
            ("done", "batch=b shard=3"),
            "over",
            {"reason": "done", "batch": "b"},
        ),
        ("worker ready %s", ("64 rows; KV=1",), "worker ready 64 rows; KV=1", {}),
        ("waits reason=%s", (ValueError("a b=c d"),), "waits", {"reason": "a b=c d"}),
        ("no step for %.0f s", (1.6,), "no step for 2 s", {}),
        ("unknown model=%s: give all", ("m",), "unknown give all", {"model": "m"}),
        ("took s=%.1f", (1.25,), "took", {"s": 1.25}),
        ("outage what=intake s=%.1f", (0.5,), "outage", {"what": "intake", "s": 0.5}),
        ("odd level=%s event=%s", (1, 2), "odd", {"level_": 1, "event_": 2}),
        ("too few %s %s", ("a",), "too few a None", {}),
    ],
)
def test_a_line_has_its_event_and_its_values_by_name(
    msg: str, args: tuple[Any, ...], event: str, known: dict[str, Any]
) -> None:
    line = line_of(msg, *args)

    assert line["event"] == event and line["level"] == "warning"
    assert known.items() <= line.items()


def test_lines_of_libraries_are_left_as_they_are() -> None:
    line = line_of("retry url=%s", "u", name="urllib3.pool")

    assert line["event"] == "retry url=u" and "url" not in line


def test_a_traceback_is_in_the_line() -> None:
    try:
        raise ValueError("broke")
    except ValueError as error:
        line = line_of("failed id=%s", "x", exc_info=(ValueError, error, error.__traceback__))

    assert line["exception"].endswith("ValueError: broke") and line["id"] == "x"


def test_what_would_break_a_line_is_escaped() -> None:
    assert line_of("reason=%s", "two\nlines")["reason"] == "two\nlines"
