"""`gristmill keys`: API keys, over the API for one's own tenant, or right in the ledger for any."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

from gristmill.cli import options
from gristmill.cli.failures import failures_reported
from gristmill.cli.ledger_door import DataDir, LedgerUrl
from gristmill.cli.output import (
    AsJson,
    Format,
    IdsOnly,
    Shape,
    moment,
    print_table,
    shape_of,
    show_many,
)
from gristmill.cli.service import BaseUrl, Profile
from gristmill.errors import UsageError

if TYPE_CHECKING:
    from gristmill.cli.key_rings import KeyRing
    from gristmill.client.objects import ApiKey

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

Tenant = Annotated[
    str | None,
    typer.Option("--tenant", metavar="NAME", help="Whose key it is, in the ledger. [default]"),
]
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


ToSecret = Annotated[
    str | None,
    typer.Option("--to-secret", metavar="ID", help="Into AWS Secrets Manager, not to stdout."),
]


@app.command()
def create(
    data_dir: DataDir = None,
    ledger_url: LedgerUrl = None,
    tenant: Tenant = None,
    name: Name = "",
    scopes: Scopes = None,
    expires: Expires = None,
    to_secret: ToSecret = None,
    as_json: AsJson = False,
    base_url: BaseUrl = None,
    profile: Profile = None,
    debug: options.Debug = False,
) -> None:
    """Make a key and print it. It is shown only now, or with --to-secret not at all.

    Over the API (by default, as other commands) with a key that has the scope `admin`; with
    --data-dir or --ledger right in the ledger, for any tenant.
    """
    with failures_reported(debug=debug):
        from gristmill.cli.key_rings import opened_ring
        from gristmill.values import parse_duration

        lifetime_s = None if expires is None else parse_duration(expires)
        with opened_ring(data_dir, ledger_url, base_url, profile) as ring:
            made = ring.create(
                tenant=tenant, name=name, scopes=tuple(scopes or ()), lifetime_s=lifetime_s
            )
            if to_secret is not None:
                _hide(made, ring, to_secret)
                return
            _print_new(made, as_json=as_json)


@app.command(name="list")
@app.command(name="ls", hidden=True)
def list_(
    data_dir: DataDir = None,
    ledger_url: LedgerUrl = None,
    tenant: OneTenant = None,
    base_url: BaseUrl = None,
    profile: Profile = None,
    format: Format = None,
    as_json: AsJson = False,
    quiet: IdsOnly = False,
    debug: options.Debug = False,
) -> None:
    """Show all keys, the newest first, without their secrets."""
    with failures_reported(debug=debug):
        from gristmill.cli.key_rings import opened_ring

        shape = shape_of(format, as_json=as_json, quiet=quiet)
        with opened_ring(data_dir, ledger_url, base_url, profile) as ring:
            if shape is Shape.TABLE:
                headings = ["id", "tenant", "state", "last used", "scopes", "name"]
                print_table(headings, [_row(key) for key in ring.list(tenant)])
            else:
                show_many(ring.list(tenant), {}, shape)


@app.command()
def rotate(
    key_id: KeyId,
    data_dir: DataDir = None,
    ledger_url: LedgerUrl = None,
    overlap: Overlap = "24h",
    as_json: AsJson = False,
    base_url: BaseUrl = None,
    profile: Profile = None,
    debug: options.Debug = False,
) -> None:
    """Print a new key with the name and scopes of this one, which ends after the overlap."""
    with failures_reported(debug=debug):
        from gristmill.cli.key_rings import opened_ring
        from gristmill.values import parse_duration

        overlap_s = int(parse_duration(overlap))
        with opened_ring(data_dir, ledger_url, base_url, profile) as ring:
            _print_new(ring.rotate(key_id, overlap_s=overlap_s), as_json=as_json)


@app.command()
def revoke(
    key_id: KeyId,
    data_dir: DataDir = None,
    ledger_url: LedgerUrl = None,
    base_url: BaseUrl = None,
    profile: Profile = None,
    debug: options.Debug = False,
) -> None:
    """Let a key end now: within seconds it is refused everywhere."""
    with failures_reported(debug=debug):
        from gristmill.cli.key_rings import opened_ring

        with opened_ring(data_dir, ledger_url, base_url, profile) as ring:
            gone = ring.revoke(key_id)
        tenant = getattr(gone, "tenant", None)
        typer.echo(f"The key {gone.id}{f' of {tenant}' if tenant else ''} is revoked.")


def _hide(key: ApiKey, ring: KeyRing, secret_id: str) -> None:
    """A key that could not be handed over is of use to nobody."""
    from gristmill.cli.secret_store import put_secret

    assert key.key is not None, "a new key has its text"
    try:
        put_secret(secret_id, key.key)
    except UsageError:
        ring.revoke(key.id)
        raise
    typer.echo(f"The key {key.id} is in the secret {secret_id}.")


def _print_new(key: ApiKey, *, as_json: bool) -> None:
    """The text of a key, which is nowhere kept."""
    typer.echo(json.dumps(key.to_dict(), ensure_ascii=False) if as_json else key.key)


def _row(key: ApiKey) -> list[str]:
    is_over = key.revoked_at is not None or (
        key.expires_at is not None and key.expires_at <= time.time()
    )
    state, tenant = "ended" if is_over else "live", getattr(key, "tenant", None) or "own"
    used = moment(key.last_used_at) or "never"
    return [key.id, tenant, state, used, ",".join(key.scopes), key.name]
