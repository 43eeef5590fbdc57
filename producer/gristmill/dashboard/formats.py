"""Numbers and times as people read them; durations are in `gristmill.values`. Pure functions."""

from __future__ import annotations

import time

from markupsafe import Markup

_UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k"))
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
#: Marks that turn the text behind them around (bidi), and spaces without a width. Joiners stay:
#: they are part of letters and emoji.
_UNSEEN = dict.fromkeys(
    [*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x061C, 0x200B, 0x200E, 0x200F, 0x2060, 0xFEFF]
)


def count(number: int) -> str:
    """1234567 as 1,234,567."""
    return f"{number:,}"


def plain(name: str | None) -> str:
    """A name on one line, as text that stays where it stands; empty where nothing is to be seen."""
    return " ".join((name or "").translate(_UNSEEN).split())


def short(number: float) -> str:
    """1234567 as 1.23 M; three digits, so that numbers in a column stay comparable."""
    for size, unit in _UNITS:
        # What would be rounded to 1000 of the unit below.
        if abs(number) >= size * 0.9995:
            return f"{_three_digits(number / size)} {unit}"
    if number == int(number):
        return str(int(number))
    return _three_digits(number)


def percent(part: float, whole: float) -> str:
    """Never 0 % of something, nor 100 % of what is not whole."""
    if whole <= 0 or part <= 0:
        return "0 %"
    share = 100 * part / whole
    if share < 1:
        return "< 1 %"
    return f"{min(int(share), 99) if part < whole else 100} %"


def distance(then: float, now: float) -> str:
    """As `just now`, `5 min ago`, `in 2 h`."""
    seconds = int(abs(now - then))
    if seconds < 2:
        return "just now" if then <= now else "in a moment"
    units = ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min"), (1, "s"))
    size, unit = next((size, unit) for size, unit in units if seconds >= size)
    text = f"{seconds // size} {unit}"
    return f"{text} ago" if then <= now else f"in {text}"


def absolute(then: float) -> str:
    """In UTC, since reader and machines may be anywhere."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(then))


def when(then: float | None, *, now: float) -> Markup:
    """The distance; the time itself in the title. A dash where there is none."""
    if then is None:
        return Markup('<span class="none">\u2013</span>')
    machine = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(then))
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        machine, absolute(then), distance(then, now)
    )


def money(amount: float, currency: str) -> str:
    return f"{amount:,.2f} {currency}" if amount >= 1 else f"{amount:.4f} {currency}"


def _three_digits(number: float) -> str:
    places = 2 if abs(number) < 9.995 else 1 if abs(number) < 99.95 else 0
    return f"{number:.{places}f}"
