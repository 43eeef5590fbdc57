"""How a client is set up: arguments, then the environment, then a profile, then the default.

Only this module of the client reads the environment.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TypedDict
from urllib.parse import urlsplit

from gristmill.client.errors import MissingApiKey
from gristmill.client.steps import TimeoutTypes
from gristmill.errors import UsageError

DEFAULT_BASE_URL = "http://127.0.0.1:8000/v1"
#: For a whole answer; to connect, 5 s.
DEFAULT_TIMEOUT_S = 600.0
CONNECT_TIMEOUT_S = 5.0
DEFAULT_MAX_RETRIES = 2


class Unset(Enum):
    """What an argument is that was not given, where None has a meaning."""

    UNSET = 0


UNSET = Unset.UNSET


class CallOptions(TypedDict, total=False):
    """What every call of the API takes, beside its own arguments."""

    extra_headers: Mapping[str, str]
    extra_query: Mapping[str, str]
    #: Fields more, or instead, in a JSON body.
    extra_body: Mapping[str, object]
    timeout: TimeoutTypes
    max_retries: int


@dataclass(frozen=True, slots=True)
class Options:
    api_key: str = field(repr=False)
    base_url: str
    timeout: TimeoutTypes
    max_retries: int = DEFAULT_MAX_RETRIES
    default_headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            raise UsageError(f"max_retries is {self.max_retries}. 0 is the least: no second try.")
        if not self.api_key.isascii() or not self.api_key.isprintable():
            raise UsageError("The API key has characters that no key has. Copy it again.")


@dataclass(frozen=True, slots=True)
class Sourced:
    """A value, and where it was found. Empty where there is none."""

    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Address:
    """Which service, as whom."""

    base_url: Sourced
    api_key: Sourced
    profile: Sourced

    def options(
        self,
        *,
        timeout: TimeoutTypes,
        max_retries: int = DEFAULT_MAX_RETRIES,
        default_headers: Mapping[str, str] | None = None,
    ) -> Options:
        """Raises MissingApiKey."""
        if not self.api_key.value:
            raise MissingApiKey(
                "No API key. Give api_key=…, set GRISTMILL_API_KEY, or run `gristmill login`. "
                "(OPENAI_API_KEY is used only when a base URL is given too.)"
            )
        return Options(
            api_key=self.api_key.value,
            base_url=checked_base_url(self.base_url.value),
            timeout=timeout,
            max_retries=max_retries,
            default_headers=dict(default_headers or {}),
        )


def changed(
    options: Options,
    *,
    api_key: str | None,
    base_url: str | None,
    timeout: TimeoutTypes | Unset,
    max_retries: int | None,
    default_headers: Mapping[str, str] | None,
) -> Options:
    """With what was given in place of what was. Headers are added."""
    return replace(
        options,
        api_key=options.api_key if api_key is None else api_key,
        base_url=options.base_url if base_url is None else checked_base_url(base_url),
        timeout=options.timeout if isinstance(timeout, Unset) else timeout,
        max_retries=options.max_retries if max_retries is None else max_retries,
        default_headers={**options.default_headers, **(default_headers or {})},
    )


def find_address(
    *,
    api_key: str | None = None,
    base_url: str | None = None,
    profile: str | None = None,
    config_path: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Address:
    """The first of argument, GRISTMILL_…, profile, OPENAI_…, default that has a value.

    OPENAI_API_KEY counts only together with a base URL, so that a key for another service is never
    sent here by accident. Raises UsageError for a profile that is not there.
    """
    environ = os.environ if environ is None else environ
    path = config_file(config_path, environ)
    named = _first(("argument", profile), ("GRISTMILL_PROFILE", environ.get("GRISTMILL_PROFILE")))
    stored = read_profile(path, named.value or "default", required=bool(named.value))
    url = _first(
        ("argument", base_url),
        ("GRISTMILL_BASE_URL", environ.get("GRISTMILL_BASE_URL")),
        (str(path), stored.get("base_url")),
        ("OPENAI_BASE_URL", environ.get("OPENAI_BASE_URL")),
    )
    key = _first(
        ("argument", api_key),
        ("GRISTMILL_API_KEY", environ.get("GRISTMILL_API_KEY")),
        (str(path), stored.get("api_key")),
        ("OPENAI_API_KEY", environ.get("OPENAI_API_KEY") if url.value else None),
    )
    return Address(
        base_url=url if url.value else Sourced(DEFAULT_BASE_URL, "default"),
        api_key=key,
        profile=named if named.value else Sourced("default", "default"),
    )


def config_file(path: str | Path | None = None, environ: Mapping[str, str] | None = None) -> Path:
    """Where profiles are kept: argument, GRISTMILL_CONFIG, or the user's configuration folder."""
    environ = os.environ if environ is None else environ
    if path is None:
        path = environ.get("GRISTMILL_CONFIG") or None
    if path is not None:
        return Path(path).expanduser()
    folder = environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(folder).expanduser() / "gristmill" / "config.toml"


def read_profiles(path: Path) -> dict[str, dict[str, str]]:
    """All profiles of a file, which need not be there. Raises UsageError for one that is broken."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{str(path)!r} is no TOML: {error}. Mend or remove it.") from error
    found = document.get("profiles", {})
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        raise UsageError(f"{str(path)!r} has no tables [profiles.NAME]. Run `gristmill login`.")
    return {name: {key: str(value) for key, value in one.items()} for name, one in found.items()}


def read_profile(path: Path, name: str, *, required: bool) -> dict[str, str]:
    profiles = read_profiles(path)
    if required and name not in profiles:
        known = ", ".join(sorted(profiles)) or "none"
        raise UsageError(
            f"There is no profile {name!r} in {str(path)!r} (there: {known}). "
            f"`gristmill login --profile {name}` makes it."
        )
    return profiles.get(name, {})


def checked_base_url(text: str) -> str:
    """Without a slash at its end; `/v1` is added where there is no path at all."""
    parts = urlsplit(text.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(
            f"The base URL is {text!r}. Write it in full, as {DEFAULT_BASE_URL} for example."
        )
    url = text.strip().rstrip("/")
    return url if parts.path.strip("/") else f"{url}/v1"


def _first(*found: tuple[str, str | None]) -> Sourced:
    return next((Sourced(value, source) for source, value in found if value), Sourced("", ""))
