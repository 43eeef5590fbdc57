"""`gristmill keys`: makes, lists and revokes API keys, of any tenant, right in the ledger."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gristmill.cli import options
from gristmill.cli.failures import failures_reported
from gristmill.errors import UsageError

if TYPE_CHECKING:
    from gristmill.ledger.ledger import Ledger
    from gristmill.ledger.tenants import ApiKey
    from gristmill.settings import Settings

app = typer.Typer(
    help="API keys: make, list, rotate, revoke.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_SCOPE_HELP = (
    "What it may: files:read, files:write, batches:read, batches:write, webhooks:read, "
    "webhooks:write, admin (all within its tenant), operator (all tenants). May be repeated; "
    "default: all but the last two."
)

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", metavar="DIR", help="The folder of `gristmill up`.")
]
LedgerUrl = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        envvar="GRISTMILL_LEDGER",
        help="The ledger of a fleet; with GRISTMILL_KEY_PEPPER.",
    ),
]
Tenant = Annotated[str, typer.Option("--tenant", metavar="NAME", help="Whose key it is.")]
OneTenant = Annotated[
    str | None, typer.Option("--tenant", metavar="NAME", help="Only the keys of this one.")
]
Name = Annotated[str, typer.Option("--name", metavar="TEXT", help="What it is for.")]
Scopes = Annotated[list[str] | None, typer.Option("--scope", metavar="SCOPE", help=_SCOPE_HELP)]
KeyId = Annotated[str, typer.Argument(metavar="ID", help="As `gristmill keys list` shows.")]
Overlap = Annotated[
    str, typer.Option("--overlap", metavar="TIME", help="Both keys are good for so long.")
]
Expires = Annotated[
    str | None, typer.Option("--expires", metavar="TIME", help="It ends after so long, as 90d.")
]


@app.command()
def create(
    data_dir: DataDir = None,
    ledger_url: LedgerUrl = None,
    tenant: Tenant = "default",
    name: Name = "",
    scopes: Scopes = None,
    expires: Expires = None,
    debug: options.Debug = False,
) -> None:
    """Make a key and print it. It is shown only now."""
    from gristmill.values import parse_duration

    with failures_reported(debug=debug), opened_ledger(data_dir, ledger_url) as (ledger, pepper):
        from gristmill.api.access import DEFAULT_SCOPES, Access, Scope
        from gristmill.cli.audited import record_command

        wrong = set(scopes or ()) - set(Scope)
        if wrong:
            raise UsageError(f"{min(wrong)!r} is no scope. There are: {', '.join(Scope)}.")
        _check_tenant(tenant)
        expires_at = None
        if expires is not None:
            expires_at = int(time.time() + parse_duration(expires))
        text, key = Access(ledger, pepper=pepper).make_key(
            tenant,
            name=name,
            scopes=tuple(dict.fromkeys(scopes or DEFAULT_SCOPES)),
            expires_at=expires_at,
        )
        record_command(ledger, tenant, "keys create", key.id)
        typer.echo(text)


@app.command(name="list")
def list_(
    data_dir: DataDir = None,
    ledger_url: LedgerUrl = None,
    tenant: OneTenant = None,
    debug: options.Debug = False,
) -> None:
    """Show all keys, the newest first, without their secrets."""
    with failures_reported(debug=debug), opened_ledger(data_dir, ledger_url) as (ledger, _):
        from gristmill.ledger import tenants

        row = "{:12}  {:16}  {:5}  {:17}  {}  {}"
        typer.echo(row.format("id", "tenant", "state", "last used", "scopes", "name").rstrip())
        after_id: str | None = None
        while True:
            with ledger.read() as conn:
                page = tenants.list_keys(conn, tenant, limit=100, after_id=after_id)
            assert page is not None, "keys are never deleted"
            for key in page.items:
                state = "live" if key.is_live(time.time()) else "ended"
                used = moment(key.last_used_at)
                scopes = ",".join(key.scopes)
                line = row.format(key.id, key.tenant_id, state, used, scopes, key.name)
                typer.echo(line.rstrip())
                after_id = key.id
            if not page.has_more:
                return


@app.command()
def rotate(
    key_id: KeyId,
    data_dir: DataDir = None,
    ledger_url: LedgerUrl = None,
    overlap: Overlap = "24h",
    debug: options.Debug = False,
) -> None:
    """Print a new key with the name and scopes of this one, which ends after the overlap."""
    from gristmill.values import parse_duration

    with failures_reported(debug=debug), opened_ledger(data_dir, ledger_url) as (ledger, pepper):
        from gristmill.api.access import Access
        from gristmill.cli.audited import record_command

        key = _find_key(ledger, key_id)
        if not key.is_live(time.time()):
            raise UsageError(
                f"The key {key.id} has ended. `gristmill keys create` makes a new one."
            )
        text, new = Access(ledger, pepper=pepper).replace_key(
            key, overlap_s=int(parse_duration(overlap)), expires_at=None
        )
        record_command(ledger, key.tenant_id, "keys rotate", key.id, made=new.id)
        typer.echo(text)


@app.command()
def revoke(
    key_id: KeyId,
    data_dir: DataDir = None,
    ledger_url: LedgerUrl = None,
    debug: options.Debug = False,
) -> None:
    """Let a key end now: within seconds it is refused everywhere."""
    with failures_reported(debug=debug), opened_ledger(data_dir, ledger_url) as (ledger, _):
        from gristmill.cli.audited import record_command
        from gristmill.ledger import tenants

        key = _find_key(ledger, key_id)
        with ledger.write() as conn:
            tenants.revoke_key(conn, key.tenant_id, key.id, now=int(time.time()))
        record_command(ledger, key.tenant_id, "keys revoke", key.id)
        typer.echo(f"The key {key.id} of {key.tenant_id} is revoked.")


def pepper_of(settings: Settings) -> bytes:
    """The setting's. Raises UsageError where it is not set."""
    if settings.key_pepper is None:
        raise UsageError(
            "GRISTMILL_KEY_PEPPER is not set. API keys are hashed under it: set a secret of at "
            "least 16 characters, the same for all processes of the API, and keep it."
        )
    return settings.key_pepper.get_secret_value().encode()


def _find_key(ledger: Ledger, key_id: str) -> ApiKey:
    """By its id, or by the whole key. Raises UsageError."""
    from gristmill.ledger import tenants

    with ledger.read() as conn:
        key = tenants.find_key(conn, key_id.removeprefix("gm_").partition("_")[0])
    if key is None:
        raise UsageError(f"There is no key {key_id[:20]!r}. `gristmill keys list` shows all.")
    return key


@contextmanager
def opened_ledger(data_dir: Path | None, ledger_url: str | None) -> Iterator[tuple[Ledger, bytes]]:
    """Ledger and pepper of a service, on one machine or of a fleet. Raises UsageError."""
    from gristmill.cli.needs import server_needed
    from gristmill.cli.settings_from import settings_from

    with server_needed():
        from gristmill.ledger.open import open_ledger
        from gristmill.local.data_folder import open_keys
    if data_dir is not None:
        ledger, pepper = open_keys(data_dir)
    elif ledger_url is not None:
        pepper = pepper_of(settings_from())
        ledger = open_ledger(ledger_url)
    else:
        raise UsageError("Say which: --data-dir DIR of `gristmill up`, or --ledger URL of a fleet.")
    try:
        yield ledger, pepper
    finally:
        ledger.close()


def _check_tenant(tenant: str) -> None:
    """It becomes a part of each key in the store."""
    import re

    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", tenant):
        raise UsageError(
            f"{tenant[:80]!r} is no name of a tenant: write 1 to 64 letters, digits, '_' and '-'."
        )


def moment(at: int | None) -> str:
    """As 2026-11-30 10:15Z; `never` for None."""
    return "never" if at is None else time.strftime("%Y-%m-%d %H:%MZ", time.gmtime(at))
