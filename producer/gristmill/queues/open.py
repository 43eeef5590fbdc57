"""Opens the Queue that a URL names; the client of a server is imported only when it is needed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from urllib.parse import urlsplit

from gristmill.errors import UsageError
from gristmill.queues.base import Queue

#: By scheme: the module, its function `open_url(url, lease_s) -> Queue`, and the extra it needs.
_BACKENDS = {
    "memory": ("gristmill.queues.memory", None),
    "redis": ("gristmill.queues.redis", "redis"),
    "rediss": ("gristmill.queues.redis", "redis"),
    "sqs": ("gristmill.queues.sqs", "aws"),
}


def open_queue(url: str, lease_s: float) -> Queue:
    """The Queue behind `memory://`, `redis://…`, `rediss://…` or `sqs://…`, reached and checked.

    `memory://` is a new Queue of this process at each call. Raises UsageError for a URL that is
    wrong or a missing extra, QueueRefused for a server that must not be used as it is, and another
    QueueError when the server cannot be reached.
    """
    scheme = urlsplit(url).scheme
    if scheme not in _BACKENDS:
        # No more than the scheme: the rest may hold a password.
        raise UsageError(
            f"{scheme + '://…' if scheme else url!r} is no queue. Give memory://, "
            "redis://HOST:6379/0, rediss://… (TLS) or sqs://PREFIX."
        )
    module, extra = _BACKENDS[scheme]
    try:
        open_url: Callable[[str, float], Queue] = import_module(module).open_url
    except ModuleNotFoundError as error:
        raise UsageError(
            f"A {scheme}:// queue needs the package {error.name}: pip install 'gristmill[{extra}]'."
        ) from error
    return open_url(url, lease_s)
