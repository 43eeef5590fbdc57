"""A TCP proxy that cuts and swallows, and a server that answers everything with one error."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class TcpProxy:
    """Stands before the server at `target_port`."""

    target_port: int
    port: int = 0
    #: The next reply that holds one of these is not delivered; its connection is cut instead.
    cut_at: list[bytes] = field(default_factory=list)
    #: While set, connections stay open and nothing comes back.
    is_mute: bool = False
    #: How long each piece of a reply is held back, in seconds.
    delay_s: float = 0.0
    num_cuts: int = 0
    _clients: set[socket.socket] = field(default_factory=set)

    def serve(self, client: socket.socket) -> None:
        self._clients.add(client)
        try:
            with client, socket.create_connection(("127.0.0.1", self.target_port)) as server:
                back = threading.Thread(target=self._pump_back, args=(server, client), daemon=True)
                back.start()
                with contextlib.suppress(OSError):
                    while chunk := client.recv(65536):
                        server.sendall(chunk)
                _hang_up(server)
                back.join()
        except OSError:
            pass  # the server is away, and so is this connection
        finally:
            self._clients.discard(client)

    def cut_all(self) -> None:
        """Every connection that is open now ends."""
        for client in self._clients.copy():
            _hang_up(client)

    def half_close_all(self) -> None:
        """Nothing more is sent to any client, whose requests still arrive."""
        for client in self._clients.copy():
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_WR)

    def _pump_back(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := server.recv(65536):
                mark = next((mark for mark in self.cut_at if mark in chunk), None)
                if mark is not None:
                    self.cut_at.remove(mark)
                    self.num_cuts += 1
                    break
                if self.delay_s:
                    time.sleep(self.delay_s)
                if not self.is_mute:
                    client.sendall(chunk)
        _hang_up(client)


def _hang_up(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


@contextmanager
def _serving(handler: type[socketserver.BaseRequestHandler]) -> Iterator[int]:
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield int(server.server_address[1])
        server.shutdown()


@contextmanager
def tcp_proxy(target_port: int) -> Iterator[TcpProxy]:
    proxy = TcpProxy(target_port)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            proxy.serve(self.request)

    with _serving(Handler) as proxy.port:
        yield proxy


@contextmanager
def redis_that_says(reply: str, *, to: bytes = b"") -> Iterator[int]:
    """The port of a server that gives one reply (to one command, or to all), and else OK."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while line := self.rfile.readline():
                words = []
                for _ in range(int(line[1:])):
                    size = int(self.rfile.readline()[1:])
                    words.append(self.rfile.read(size + 2)[:size])
                says = reply if not to or words[0].upper() == to else "+OK"
                self.wfile.write(says.encode() + b"\r\n")

    with _serving(Handler) as port:
        yield port
