"""The log of a process that runs for long, on stderr: a line of JSON each, or readable on a tty.

Log calls are written as `log.info("attempt over reason=%s batch=%s", …)`: an event, then what is
known of it. Both forms come from that. The values are ids, counts and reasons; a prompt, an answer
or a key is never one of them.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

_SLOT = re.compile(r"%[-+#0-9.]*[a-zA-Z]")
#: A piece of a log call's text that is a value: `name=%s`, `url=%s/readyz`, `what=intake`, or `%s`
#: alone.
_PIECE = re.compile(
    rf"\b(?P<name>[a-z_]+)=(?P<form>[^\s%]*{_SLOT.pattern}\S*|[^\s%]+)|{_SLOT.pattern}"
)
#: What an object says of itself for the log: `batch=b shard=3`.
_PAIRS = re.compile(r"(?:[a-z_]+=\S+ ?)+")
_OWN = ("gristmill", "gristmill_worker")


def log_to_stderr(*, debug: bool, log_format: str = "text") -> None:
    """Lines of ours from INFO on (DEBUG with `debug`), of libraries from WARNING on.

    `log_format` is "json", "text", or "auto": what is read by people is text.
    """
    is_json = log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if is_json else _readable())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    for name in _OWN:
        logging.getLogger(name).setLevel(logging.DEBUG if debug else logging.INFO)


def _readable() -> logging.Formatter:
    formatter = logging.Formatter(
        f"%(asctime)s level=%(levelname)s pid={os.getpid()} %(name)s: %(message)s",
        "%Y-%m-%dT%H:%M:%SZ",
    )
    formatter.converter = time.gmtime
    return formatter


class JsonLines(logging.Formatter):
    """One object a line: time, level, logger, pid, event, and what is known of it by name."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            **_event(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _event(record: logging.LogRecord) -> dict[str, Any]:
    """The event without its values, and its values by their names."""
    if record.name.split(".")[0] not in _OWN or not isinstance(record.msg, str):
        return {"event": record.getMessage()}
    args = iter(record.args if isinstance(record.args, tuple) else ())
    known: dict[str, Any] = {}
    words: list[str] = []
    end = 0
    for piece in _PIECE.finditer(record.msg):
        words.append(record.msg[end : piece.start()])
        end = piece.end()
        form = piece["form"] or piece[0]
        values = tuple(next(args, None) for _ in _SLOT.finditer(form))
        if piece["name"]:
            form = form.rstrip(":,;.")
            is_alone = _SLOT.fullmatch(form) is not None
            known[piece["name"]] = _plain(values[0]) if is_alone else form % values
        elif isinstance(values[0], str) and _PAIRS.fullmatch(values[0]):
            known |= dict(_pairs(values[0]))
        else:
            words.append(form % values)
    words.append(record.msg[end:])
    return {"event": " ".join("".join(words).split()), **_without_clash(known)}


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for pair in text.split():
        name, _, value = pair.partition("=")
        yield name, value


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | None) else str(value)


def _without_clash(known: Mapping[str, Any]) -> dict[str, Any]:
    """No value takes the place of what each line has."""
    taken = {"time", "level", "logger", "pid", "event", "exception"}
    return {f"{name}_" if name in taken else name: value for name, value in known.items()}
