"""`gristmill workers`: the machines that answer, as they announce themselves."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from gristmill.adapters import name_of
from gristmill.cli import options
from gristmill.cli.output import AsJson, Format, IdsOnly, Shape, print_table, shape_of, show_many
from gristmill.cli.service import BaseUrl, Profile, service

if TYPE_CHECKING:
    from gristmill.client.workers import Worker

WithEnded = Annotated[bool, typer.Option("--all", help="Those that have ended, too.")]

_HEADINGS = (
    *("worker", "state", "seen", "model", "device", "host", "longest", "rows", "KV"),
    *("tokens/s", "prefill/decode", "lanes"),
)


def workers(
    with_ended: WithEnded = False,
    base_url: BaseUrl = None,
    profile: Profile = None,
    format: Format = None,
    as_json: AsJson = False,
    quiet: IdsOnly = False,
    debug: options.Debug = False,
) -> None:
    """Show every worker: its state, model and adapters, limits, load, how fast it is, its lanes.

    Needs a key with the scope `operator`. One that is not heard of for 45 seconds is lost.
    """
    with service(base_url, profile, debug=debug) as client:
        shape = shape_of(format, as_json=as_json, quiet=quiet)
        found = list(client.workers.list(include_ended=with_ended, limit=1000))
        if shape is Shape.TABLE:
            print_table(_HEADINGS, [_row(one, time.time()) for one in found])
        else:
            show_many(found, {}, shape)


def _row(one: Worker, now: float) -> list[str]:
    return [
        one.id,
        one.state,
        f"{max(now - one.last_seen_at, 0):.0f} s ago",
        " + ".join([one.model, *map(name_of, one.adapters)]),
        one.device,
        one.host,
        f"{one.max_row_tokens:,}" if one.max_row_tokens else "-",
        f"{one.rows}/{one.max_rows}",
        "" if not one.kv_tokens else f"{one.kv_used_tokens / one.kv_tokens:.0%}",
        f"{one.tokens_per_second:,.0f}",
        f"{_prefill(one)}/{_rate(one.decode_tokens_per_second)}",
        ",".join(one.lanes),
    ]


def _prefill(one: Worker) -> str:
    """The range over the classes of length."""
    rates = one.prefill_tokens_per_second.values()
    if not rates:
        return "-"
    slowest, fastest = min(rates), max(rates)
    return _rate(fastest) if slowest == fastest else f"{_rate(slowest)}..{_rate(fastest)}"


def _rate(tokens_per_s: float | None) -> str:
    return "-" if tokens_per_s is None else f"{tokens_per_s:,.0f}"
