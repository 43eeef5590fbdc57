"""A collector of traces: a real OTLP/HTTP receiver on this machine that keeps the spans it gets."""

from __future__ import annotations

import gzip
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True)
class CollectedSpan:
    """A span as it came over the wire; ids in hex."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    began_ns: int
    ended_ns: int
    has_failed: bool
    facts: dict[str, Any]
    #: Of the process that told it.
    service: str


class Collector:
    """While entered, listens at `url`."""

    def __init__(self) -> None:
        self.spans: list[CollectedSpan] = []
        #: All bytes that came, as text of a sort.
        self.heard = b""
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/traces", self.path
                collector._take(body)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def named(self, name: str) -> list[CollectedSpan]:
        return [span for span in self.spans if span.name == name]

    def _take(self, body: bytes) -> None:
        self.heard += body
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            of_process = _facts(resource.resource.attributes)
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans.append(
                        CollectedSpan(
                            span.name,
                            span.trace_id.hex(),
                            span.span_id.hex(),
                            span.parent_span_id.hex(),
                            span.start_time_unix_nano,
                            span.end_time_unix_nano,
                            span.status.code == 2,
                            _facts(span.attributes),
                            str(of_process.get("service.name")),
                        )
                    )


def _facts(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
