"""Values as people write and read them: durations, counts."""

from __future__ import annotations

import re
from datetime import datetime
from fractions import Fraction

from gristmill.errors import UsageError

_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_COUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kmgtKMGT]?)")
_FACTOR = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_FACTOR |= {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_duration(text: str) -> float:
    """Seconds of `500ms`, `2s`, `1.5m`, `2h`, `7d`. Raises UsageError."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a duration. Write a number and a unit: 500ms, 2s, 5m.")
    seconds = float(match[1]) * _UNIT_S[match[2]]
    if seconds == 0:
        raise UsageError(f"{text!r} is no time at all. The shortest duration is 1ms.")
    return seconds


def parse_moment(text: str, *, now: float) -> float:
    """Unix seconds of `2h` (so long ago), `2026-11-30T10:00Z` or `1796032800`. Raises UsageError.

    A time without a zone is that of this machine.
    """
    text = text.strip()
    if _DURATION.fullmatch(text):
        return now - parse_duration(text)
    if text.isascii() and text.isdigit() and len(text) in (9, 10, 11):
        return float(text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"{text!r} is no time. Write how long ago, as 2h or 3d, a date, as 2026-11-30T10:00Z, "
            "or Unix seconds."
        ) from error


def format_duration(seconds: float | None) -> str:
    """For people, in two parts at most: `4.2 ms`, `850 ms`, `3.2 s`, `45 s`, `3 min 12 s`,
    `2 h 5 min`, `3 d 4 h`; `-` for None."""
    if seconds is None:
        return "-"
    if seconds < 0.9995:
        places = 1 if 0 < seconds < 0.00995 else 0
        return f"{max(seconds, 0) * 1000:.{places}f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return _two_parts(whole // 60, "min", whole % 60, "s")
    if whole < 86_400:
        return _two_parts(whole // 3600, "h", whole % 3600 // 60, "min")
    return _two_parts(whole // 86_400, "d", whole % 86_400 // 3600, "h")


def _two_parts(large: int, unit: str, small: int, small_unit: str) -> str:
    return f"{large} {unit} {small} {small_unit}" if small else f"{large} {unit}"


def counted(count: int, noun: str) -> str:
    """`1 row`, `1,200 rows`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def parse_count(text: str) -> int:
    """`1000`, `25.6k` (thousands), `4K` (times 1024), and so on with m, g, t. Raises UsageError.

    Small letters count in thousands and large ones in 1024, as vLLM's command line has them.
    """
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is no number. Write 1000, 25.6k (thousands) or 4K (1024).")
    number = Fraction(match[1]) * _FACTOR[match[2]]
    if number.denominator != 1:
        raise UsageError(f"{text!r} is no whole number.")
    return int(number)


def format_bytes(num_bytes: float) -> str:
    """`512 B`, `3.4 MB`: in thousands, with two digits at least."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"
