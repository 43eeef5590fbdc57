"""Ports for servers that tests start, which no connection of another test can take by chance."""

from __future__ import annotations

import random
import socket

#: Below what operating systems hand out on their own: a port of theirs may be taken again, by a
#: connection or another test's server, between the moment it is found and that it is used.
_RANGE = range(10_240, 32_000)


def free_port() -> int:
    """A port of this machine that nobody listens on. Differs from process to process."""
    while True:
        port = random.SystemRandom().choice(_RANGE)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
