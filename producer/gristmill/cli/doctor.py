"""`gristmill doctor`: looks at everything that a user or an operator needs, and says what to do."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from gristmill.cli import options
from gristmill.cli.failures import ExitCode, failures_reported
from gristmill.cli.service import BaseUrl, Profile
from gristmill.errors import GristmillError

#: What each extra is known by.
_PACKAGES = {
    "torch": "worker",
    "transformers": "server",
    "tokenizers": "server",
    "fastapi": "server",
    "sqlalchemy": "server",
    "boto3": "aws",
    "redis": "redis",
    "pyarrow": "data",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """`state` is ok, missing (not needed by all) or bad; `way_out` says what to do."""

    name: str
    state: str
    text: str
    way_out: str = ""


def doctor(
    ledger_url: Annotated[
        str | None, typer.Option("--ledger", metavar="URL", envvar="GRISTMILL_LEDGER")
    ] = None,
    queue_url: Annotated[
        str | None, typer.Option("--queue", metavar="URL", envvar="GRISTMILL_QUEUE")
    ] = None,
    store_url: Annotated[
        str | None, typer.Option("--store", metavar="URL", envvar="GRISTMILL_STORE")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="Look at this model, too.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    base_url: BaseUrl = None,
    profile: Profile = None,
    debug: options.Debug = False,
) -> None:
    """Check versions, the service and its key, and with their options ledger, queue, store, model.

    Exit codes: 0 all is well, 1 something is bad.
    """
    with failures_reported(debug=debug):
        checks: dict[str, Callable[[], Iterator[Finding]]] = {
            "versions": _versions,
            "settings": _settings,
            "service": partial(_service, base_url, profile),
        }
        if ledger_url:
            checks["ledger"] = partial(_ledger, ledger_url)
        if queue_url:
            checks["queue"] = partial(_queue, queue_url)
        if store_url:
            checks["store"] = partial(_store, store_url)
        checks["model" if model else "device"] = partial(_device, model)
        findings: list[Finding] = []
        for name, check in checks.items():
            for finding in _caught(name, check):
                findings.append(finding)
                if not as_json:
                    _print(finding)
        if as_json:
            typer.echo(json.dumps([asdict(finding) for finding in findings], ensure_ascii=False))
    is_bad = any(finding.state == "bad" for finding in findings)
    raise typer.Exit(ExitCode.ERROR if is_bad else ExitCode.OK)


def _print(finding: Finding) -> None:
    marks = {"ok": "ok  ", "missing": "-   ", "bad": "BAD "}
    typer.echo(f"{marks[finding.state]} {finding.name:<12} {finding.text}")
    if finding.way_out:
        typer.echo(f"     {'':<12} {finding.way_out}")


def _caught(name: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """What a check raises is what it found."""
    try:
        yield from check()
    except ModuleNotFoundError as error:
        yield Finding(
            str(error.name), "missing", "not installed", "pip install 'gristmill[all]' has it."
        )
    except GristmillError as error:
        yield Finding(name, "bad", str(error))


def _versions() -> Iterator[Finding]:
    told = f"{version('gristmill')}, Python {platform.python_version()} on {platform.system()}"
    yield Finding("gristmill", "ok", told)
    for package, extra in _PACKAGES.items():
        try:
            yield Finding(package, "ok", version(package))
        except PackageNotFoundError:
            yield Finding(
                package,
                "missing",
                "not installed",
                f"Only for some commands: pip install 'gristmill[{extra}]'.",
            )


def _settings() -> Iterator[Finding]:
    from gristmill.cli.settings_from import settings_from
    from gristmill.client.options import config_file, read_profiles

    try:
        settings_from()
        yield Finding("settings", "ok", "all GRISTMILL_ variables can be read")
    except GristmillError as error:
        yield Finding("settings", "bad", str(error))
    path = config_file()
    try:
        profiles = read_profiles(path)
    except GristmillError as error:
        yield Finding("profiles", "bad", str(error))
        return
    if not profiles:
        yield Finding("profiles", "missing", f"none in {path}", "`gristmill login` makes one.")
    elif sys.platform != "win32" and path.stat().st_mode & 0o077:
        yield Finding("profiles", "bad", f"{path} can be read by others", f"chmod 600 {path}")
    else:
        yield Finding("profiles", "ok", f"{', '.join(profiles)} in {path}")


def _service(base_url: str | None, profile: str | None) -> Iterator[Finding]:
    import httpx2

    from gristmill.client import (
        APIError,
        AuthenticationError,
        Client,
        MissingApiKey,
        NotFoundError,
        PermissionDeniedError,
    )
    from gristmill.client.options import checked_base_url, find_address

    address = find_address(base_url=base_url, profile=profile)
    url = checked_base_url(address.base_url.value)
    try:
        ready = httpx2.get(f"{url.removesuffix('/v1')}/readyz", timeout=10)
    except httpx2.HTTPError as error:
        is_asked = address.base_url.source != "default"
        yield Finding(
            "service",
            "bad" if is_asked else "missing",
            f"{url} does not answer: {error}",
            "Start one with `gristmill up --model M`, or give --base-url.",
        )
        return
    state = "ok" if ready.status_code == 200 else "bad"
    yield Finding("service", state, f"{url} answers {ready.status_code}")
    states: list[str] | None = None
    try:
        with Client(base_url=base_url, profile=profile, max_retries=0) as client:
            names = [model.id for model in client.models.list()]
            # Not every key may see them, and an older service does not know them.
            with suppress(PermissionDeniedError, NotFoundError):
                states = [worker.state for worker in client.workers.list(limit=1000)]
    except MissingApiKey as error:
        yield Finding("key", "bad", "there is none", str(error))
    except AuthenticationError:
        yield Finding(
            "key",
            "bad",
            f"the one of {address.api_key.source} is refused",
            "Run `gristmill login`.",
        )
    except APIError as error:
        yield Finding("key", "bad", str(error))
    else:
        yield Finding("key", "ok", f"the one of {address.api_key.source} is live")
        told = ", ".join(names) or "none"
        way_out = "" if names else "Start `gristmill control … --model M` and a worker."
        yield Finding("models", "ok" if names else "bad", told, way_out)
        if states is not None:
            yield _workers(states)


def _workers(states: Iterable[str]) -> Finding:
    """Of those that have not ended: how many there are in each state."""
    found = list(states)
    if set(found) - {"lost"}:
        return Finding("workers", "ok", _told_states(found))
    return Finding(
        "workers",
        "missing",
        _told_states(found),
        "Start `gristmill worker`; one announces itself within seconds, if a control process runs.",
    )


def _told_states(states: Iterable[str]) -> str:
    counts = Counter(states)
    return ", ".join(f"{n} {state}" for state, n in sorted(counts.items())) or "none announced"


def _ledger(url: str) -> Iterator[Finding]:
    from gristmill.ledger import workers
    from gristmill.ledger.open import open_ledger

    ledger = open_ledger(url)
    try:
        with ledger.read() as conn:
            known = workers.list_workers(conn, with_ended=False)
    finally:
        ledger.close()
    now = time.time()
    told = _told_states(one.state_at(now).value for one in known)
    yield Finding("ledger", "ok", f"opened, its schema is this version's; workers: {told}")


def _queue(url: str) -> Iterator[Finding]:
    from gristmill.cli.settings_from import settings_from
    from gristmill.queues.open import open_queue

    queue = open_queue(url, settings_from().lease_s)
    queue.close()
    yield Finding("queue", "ok", "answers")


def _store(url: str) -> Iterator[Finding]:
    from gristmill.stores.open import open_store

    open_store(url).probe()
    yield Finding("store", "ok", "writes, reads, lists and removes")


def _device(model: str | None) -> Iterator[Finding]:
    from gristmill.cli.settings_from import settings_from
    from gristmill.compute import find_device

    settings = settings_from()
    with suppress(GristmillError):
        yield Finding("device", "ok", find_device(settings.device))
    if model is not None:
        from gristmill.local_model import find_local_model

        found, _ = find_local_model(model, settings=settings, revision=None, served_names=())
        yield Finding("model", "ok", f"{found.name}: up to {found.max_model_len} tokens")
