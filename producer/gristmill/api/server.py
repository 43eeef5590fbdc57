"""An HTTP server in a thread of its own, for an ASGI application. Signals are left to others."""

from __future__ import annotations

import socket
import threading
import time
from typing import Self

import uvicorn
from fastapi import FastAPI

from gristmill.errors import UsageError

#: Request line and headers together, in bytes.
_MAX_HEADER_BYTES = 32 * 1024
_BACKLOG = 512
#: What answers and downloads under way get to end, when the server stops.
_STOP_S = 5
#: Longer than a load balancer leaves an idle connection open: who closes first while a request is
#: on its way lets it fail (502).
KEEP_ALIVE_S = 330


class HttpServer:
    """Listens from the start; answers while entered. Raises UsageError when it cannot listen."""

    def __init__(self, app: FastAPI, *, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # The protocol is named, or asyncio leaves Nagle's delay on.
        self._socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
            self._socket.listen(_BACKLOG)
        except OSError as error:
            self._socket.close()
            raise UsageError(
                f"Nothing can listen on {host}:{port}: {error.strerror or error}. Choose another "
                "--host or --port; port 0 is any free one."
            ) from error
        self._host = host
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http="h11",
                h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_STOP_S,
                timeout_keep_alive=KEEP_ALIVE_S,
            )
        )
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="api", daemon=True
        )

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._socket.getsockname()[1]}"

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def __enter__(self) -> Self:
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()
