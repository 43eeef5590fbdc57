"""The settings of a command: an option wins over the environment, which wins over the default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.errors import UsageError

if TYPE_CHECKING:
    from gristmill.settings import Settings


def settings_from(*, flush_interval: str | None = None, **given: float | str | None) -> Settings:
    """Settings with the options that were given (None was not). Raises UsageError.

    `flush_interval` is a promise about every kill, so it is the interval of quiet times too.
    """
    from pydantic import ValidationError

    from gristmill.settings import Settings
    from gristmill.values import parse_duration

    if flush_interval is not None:
        flush_interval_s = parse_duration(flush_interval)
        given |= {"flush_interval_s": flush_interval_s, "quiet_flush_interval_s": flush_interval_s}
    try:
        return Settings(**{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0]).removeprefix("GRISTMILL_").lower()
        is_secret = "Secret" in str(Settings.model_fields[field].annotation)
        seen = "a secret that is not shown" if is_secret else repr(first["input"])
        raise UsageError(
            f"GRISTMILL_{field.upper()} is set to {seen}: {first['msg']}. "
            "The README lists every setting with its unit and default."
        ) from error
