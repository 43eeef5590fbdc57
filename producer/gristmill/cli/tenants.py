"""`gristmill tenants`: quotas, usage and the audit log of all tenants, right in the ledger."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from gristmill.cli import options
from gristmill.cli.failures import failures_reported
from gristmill.cli.ledger_door import DataDir, LedgerUrl, opened_ledger
from gristmill.cli.output import moment
from gristmill.errors import UsageError

app = typer.Typer(
    help="Tenants: their quotas, usage and audit log.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Tenant = Annotated[str, typer.Argument(metavar="NAME", help="As `gristmill tenants list` shows.")]
OneTenant = Annotated[
    str | None, typer.Option("--tenant", metavar="NAME", help="Only what this one did.")
]
Values = Annotated[
    list[str],
    typer.Argument(
        metavar="QUOTA=VALUE…",
        help="As requests_per_min=600: a number, `none` for no limit, `default` for the setting.",
    ),
]
Days = Annotated[int, typer.Option("--days", min=1, max=3660, help="So many, up to today.")]
Count = Annotated[int, typer.Option("--count", "-n", min=1, help="The newest so many.")]

_PAGE = 100


@app.command(name="list")
def list_(
    data_dir: DataDir = None, ledger_url: LedgerUrl = None, debug: options.Debug = False
) -> None:
    """Show all tenants and the quotas that are in force for each."""
    with failures_reported(debug=debug), opened_ledger(data_dir, ledger_url) as (ledger, _):
        from gristmill.cli.settings_from import settings_from
        from gristmill.ledger import quotas
        from gristmill.quotas import QUOTA_NAMES, quotas_of

        settings, after_id = settings_from(), ""
        while True:
            with ledger.read() as conn:
                page = quotas.list_tenants(conn, limit=_PAGE, after_id=after_id)
            for tenant in page:
                in_force = quotas_of(settings, tenant.own)
                typer.echo(tenant.tenant_id)
                for name in QUOTA_NAMES:
                    limit = getattr(in_force, name)
                    shown = "none" if limit is None else str(limit)
                    mark = "" if name in tenant.own else "  (default)"
                    typer.echo(f"  {name} = {shown}{mark}")
                after_id = tenant.tenant_id
            if len(page) < _PAGE:
                return


@app.command(name="set")
def set_(
    tenant: Tenant,
    values: Values,
    data_dir: DataDir = None,
    ledger_url: LedgerUrl = None,
    debug: options.Debug = False,
) -> None:
    """Give a tenant quotas of its own; they hold within seconds."""
    with failures_reported(debug=debug):
        found = dict(_parse_quota(value) for value in values)
        with opened_ledger(data_dir, ledger_url) as (ledger, _):
            from gristmill.cli.audited import record_command
            from gristmill.ledger import quotas

            changes = {name: limit for name, limit in found.items() if limit != "default"}
            with ledger.write() as conn:
                made = quotas.set_own(
                    conn,
                    tenant,
                    {n: None if limit == "none" else int(limit) for n, limit in changes.items()},
                    defaults=set(found) - set(changes),
                )
            if made is None:
                raise UsageError(
                    f"There is no tenant {tenant[:80]!r}. `gristmill keys create --tenant` makes "
                    "one with its first key."
                )
            record_command(ledger, tenant, "tenants set", tenant, **found)
        typer.echo(f"{tenant}: " + ", ".join(f"{name} = {limit}" for name, limit in found.items()))


@app.command()
def usage(
    data_dir: DataDir = None,
    ledger_url: LedgerUrl = None,
    days: Days = 30,
    debug: options.Debug = False,
) -> None:
    """Show accepted rows and their tokens, by day (UTC), tenant and model."""
    with failures_reported(debug=debug), opened_ledger(data_dir, ledger_url) as (ledger, _):
        from gristmill.ledger import usage as usage_by_day
        from gristmill.ledger.usage import DAY_S, UsageKey

        row = "{:10}  {:16}  {:>10}  {:>8}  {:>14}  {:>14}  {}"
        typer.echo(row.format("day", "tenant", "rows", "failed", "input", "output", "model"))
        today = int(time.time()) // DAY_S
        after: UsageKey | None = None
        has_more = True
        while has_more:
            with ledger.read() as conn:
                lines, has_more = usage_by_day.list_lines(
                    conn,
                    None,
                    since_day=today - days + 1,
                    until_day=today + 1,
                    by=["day"],
                    limit=_PAGE,
                    after=after,
                )
            for line in lines:
                after = line.key
                day = time.strftime("%Y-%m-%d", time.gmtime((line.key.day or 0) * DAY_S))
                counts = (line.completed + line.failed, line.failed)
                tokens = (line.usage.prompt_tokens, line.usage.completion_tokens)
                typer.echo(row.format(day, line.key.tenant_id, *counts, *tokens, line.key.model))


@app.command()
def audit(
    data_dir: DataDir = None,
    ledger_url: LedgerUrl = None,
    tenant: OneTenant = None,
    count: Count = 100,
    debug: options.Debug = False,
) -> None:
    """Show who changed what, the newest first."""
    with failures_reported(debug=debug), opened_ledger(data_dir, ledger_url) as (ledger, _):
        from gristmill.ledger import audit as audit_log

        row = "{:20}  {:16}  {:12}  {:15}  {}  {}"
        typer.echo(row.format("time", "tenant", "key", "address", "action", "object"))
        after_id: str | None = None
        while count > 0:
            with ledger.read() as conn:
                page = audit_log.list_page(conn, tenant, limit=min(count, _PAGE), after_id=after_id)
            if page is None:
                return  # it grew old meanwhile, and so did all behind it
            for event in page.items:
                who, where = event.key_id or "-", event.address or "-"
                shown = (moment(event.created_at), event.tenant_id, who, where)
                typer.echo(row.format(*shown, event.action, event.object_id))
                after_id = event.id
            count -= len(page.items)
            if not page.has_more:
                return


def _parse_quota(text: str) -> tuple[str, str]:
    """Name and value. Raises UsageError."""
    from gristmill.quotas import QUOTA_NAMES

    name, _, value = text.partition("=")
    if name not in QUOTA_NAMES:
        raise UsageError(f"{name[:80]!r} is no quota. There are: {', '.join(QUOTA_NAMES)}.")
    if value not in ("none", "default") and not (value.isascii() and value.isdigit()):
        raise UsageError(
            f"{name} cannot be {value[:80]!r}: write a whole number, `none` or `default`."
        )
    return name, value
