"""Rows a second and memory of `client.submit` on Parquet files of 50,000 and 1,000,000 rows.

The service is one that takes every upload and forgets it, so that the client alone is measured:
reading, rendering, writing the lines and sending them. CPU seconds are those of the client.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from _memory import peak_mib

_ROWS = (50_000, 1_000_000)
_AT_ONCE = 50_000


class Sink(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        left = int(self.headers["content-length"])
        while left:
            left -= len(self.rfile.read(min(left, 1 << 18)))
        is_file = self.path.endswith("/files")
        made = {"id": "file-1"} if is_file else {"id": "batch_1", "status": "validating"}
        body = json.dumps(made).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def write_parquet(path: Path, num_rows: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    text = "This is review number {}, of a middling length so that it looks like one. "
    schema = pa.schema([("id", pa.string()), ("text", pa.string()), ("stars", pa.int64())])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, num_rows, _AT_ONCE):
            numbers = range(start, min(start + _AT_ONCE, num_rows))
            columns = [[f"r{i}" for i in numbers], [text.format(i) * 3 for i in numbers]]
            writer.write_table(pa.table([*columns, list(numbers)], schema=schema))


def submit(url: str, path: str, num_rows: int) -> None:
    """In a process of its own, so that its memory is that of the client."""
    from gristmill import Client

    began = time.process_time()
    with Client(base_url=url, api_key="gm_none") as client:
        client.submit(
            path, model="M", template="Review: {text}\nStars? {stars}", id_column="id", max_tokens=8
        )
    rate = num_rows / (time.process_time() - began)
    print(f"{num_rows:>9,} rows  {rate:>9,.0f} rows per CPU second  peak {peak_mib():.0f} MiB")


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Sink)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    with tempfile.TemporaryDirectory() as folder:
        for num_rows in _ROWS:
            path = Path(folder, f"{num_rows}.parquet")
            write_parquet(path, num_rows)
            command = [sys.executable, __file__, url, str(path), str(num_rows)]
            subprocess.run(command, check=True)
    server.shutdown()


if __name__ == "__main__":
    if len(sys.argv) == 4:
        submit(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        main()
