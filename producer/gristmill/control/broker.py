"""The broker that Celery rings through, from a URL of the same form as the queue's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from gristmill.errors import UsageError

#: A message that its holder has not acknowledged is given to another one after so long. Longer
#: than any slice; one that takes longer still is repeated, and known by its ticket.
_VISIBILITY_S = 300


@dataclass(frozen=True, slots=True)
class Broker:
    #: As Celery takes it; may hold a password.
    url: str
    #: For people: no password.
    shown: str
    transport_options: Mapping[str, Any]


def parse_broker_url(url: str, *, queue_url: str) -> Broker:
    """`redis://…`, `rediss://…` or `sqs://…`, with the parameters of a queue.

    Raises UsageError, also when the broker is the database that the queue lies in.
    """
    scheme = urlsplit(url).scheme
    if scheme in ("redis", "rediss"):
        return _redis(url, queue_url=queue_url)
    if scheme == "sqs":
        return _sqs(url)
    # No more than the scheme: the rest may hold a password.
    raise UsageError(
        f"{scheme + '://…' if scheme else url!r} is no broker. Give redis://HOST:6379/1, "
        "rediss://… (TLS) or sqs://PREFIX."
    )


def _redis(url: str, *, queue_url: str) -> Broker:
    from gristmill.queues.redis_server import parse_redis_url

    parsed = parse_redis_url(url)
    if urlsplit(queue_url).scheme in ("redis", "rediss") and _place(parsed.server) == _place(
        parse_redis_url(queue_url).server
    ):
        raise UsageError(
            f"The broker {parsed.shown} is the database of the queue, and Celery wants one of its "
            "own: give another number at the end of the URL, such as /1, or another server."
        )
    given = parse_qs(urlsplit(url).query)
    passed_on = parse_qs(urlsplit(parsed.server).query)
    if urlsplit(url).scheme == "rediss":
        passed_on["ssl_cert_reqs"] = ["required"]
    # Several fleets may share a database, each under a prefix of its own.
    prefix = f"{parsed.prefix}:" if "prefix" in given else ""
    return Broker(
        url=urlsplit(parsed.server)._replace(query=urlencode(passed_on, doseq=True)).geturl(),
        shown=parsed.shown,
        transport_options={
            "visibility_timeout": _VISIBILITY_S,
            "unacked_restore_interval": 5,
            "unacked_restore_throttle": 1,
            "socket_keepalive": True,
            "health_check_interval": 10,
            "global_keyprefix": f"{prefix}cp:",
        },
    )


def _place(url: str) -> tuple[str, int, int]:
    """Host, port and number of the database."""
    parts = urlsplit(url)
    return parts.hostname or "localhost", parts.port or 6379, int(parts.path.strip("/") or 0)


def _sqs(url: str) -> Broker:
    try:
        import_module("pycurl")  # without it Celery hears nothing from SQS
        from gristmill.aws import aws_session, client_config, parse_aws_url
    except ModuleNotFoundError as error:
        raise UsageError(
            f"An sqs:// broker needs the package {error.name}: pip install 'gristmill[server]'."
        ) from error
    parsed = parse_aws_url(url, choices={}, attempts=3, timeout_s=10.0)
    if not parsed.name or parsed.path:
        raise UsageError(f"{url!r} is no broker: write sqs://PREFIX?endpoint=…&region=….")
    region: str | None = getattr(client_config(parsed, aws_session()), "region_name", None)
    if region is None:
        raise UsageError(f"{url!r}: give region=… in the URL or AWS_DEFAULT_REGION.")
    endpoint = urlsplit(parsed.endpoint or "")
    return Broker(
        url=f"sqs://{endpoint.netloc}",
        shown=url,
        transport_options={
            "visibility_timeout": _VISIBILITY_S,
            "region": region,
            "is_secure": endpoint.scheme != "http",
            # Lanes of a queue of the same PREFIX have no such name.
            "queue_name_prefix": f"{parsed.name}-cp-",
            # The next poll follows at once: it waits on the server already.
            "wait_time_seconds": 10,
            "polling_interval": 0,
        },
    )
