"""The API of `gristmill up`, with a FakeEngine: status polls, uploads and downloads, first token.

    python tests/bench/api.py [--seconds 5] [--megabytes 256 1024]

Clients are processes of their own, on the same machine: what they take, the service lacks.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / name) for name in ("api", "integration", "services")]

from house import House, make_lines  # noqa: E402
from sqlalchemy import insert, select  # noqa: E402

from gristmill.ledger.schema import batches  # noqa: E402

_NUM_BATCHES = 1000
_FORM = b'--x\r\nContent-Disposition: form-data; name="'


def main() -> None:
    if sys.argv[1:2] == ["client"]:
        role, *arguments = sys.argv[2:]
        {"poll": poll, "transfer": transfer}[role](*arguments)
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--megabytes", type=int, nargs="*", default=[256, 1024])
    options = parser.parse_args()
    with (
        TemporaryDirectory() as folder,
        House.opened(Path(folder), max_file_bytes=1 << 40, quota_requests_per_min=10**8) as house,
    ):
        house.wait(house.create(make_lines(1)))  # everything is imported now
        measure_first_token(house)
        for megabytes in options.megabytes:
            measure_transfer(house, megabytes)
        measure_polls(house, options.seconds)


def start(role: str, house: House, *arguments: object) -> subprocess.Popen[str]:
    address = house.service.url.removeprefix("http://")
    words = [role, address, house.key(), *map(str, arguments)]
    return subprocess.Popen(
        [sys.executable, __file__, "client", *words], stdout=subprocess.PIPE, text=True
    )


def measure_first_token(house: House) -> None:
    waits = []
    for _ in range(10):
        file, client = house.upload(make_lines(3)), house.client()
        began, num_before = time.monotonic(), len(house.engine.decoded)
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        while len(house.engine.decoded) == num_before:
            time.sleep(0.001)
        waits.append(time.monotonic() - began)
        house.wait(batch)
    waits.sort()
    print(f"create to first token: median {waits[5] * 1e3:.0f} ms, worst {waits[-1] * 1e3:.0f} ms")


def measure_transfer(house: House, megabytes: int) -> None:
    peak, stop = [0.0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.02):
            peak[0] = max(peak[0], resident_mb())

    before = resident_mb()
    watcher = threading.Thread(target=watch)
    watcher.start()
    up_s, down_s = json.loads(start("transfer", house, megabytes).communicate()[0])
    stop.set()
    watcher.join()
    print(
        f"{megabytes} MiB: up in {up_s:.1f} s, down in {down_s:.1f} s; memory of the service "
        f"{before:.0f} MiB before, {peak[0]:.0f} MiB at most"
    )


def measure_polls(house: House, seconds: float) -> None:
    batch = house.wait(house.create(make_lines(1)))
    with house.data.ledger.write() as conn:
        row = dict(conn.execute(select(batches).where(batches.c.id == batch.id)).mappings().one())
        conn.execute(insert(batches), [row | {"id": f"copy-{i}"} for i in range(_NUM_BATCHES)])
    house.engine.step_s = 0.03
    for what in ("idle", "a batch runs"):
        if what != "idle":
            house.create(make_lines(2000))
        for num_clients in (1, 4, 16):
            began = time.process_time()
            clients = [start("poll", house, batch.id, seconds) for _ in range(num_clients)]
            found = [json.loads(process.communicate()[0]) for process in clients]
            spent = time.process_time() - began
            waits = sorted(wait for some in found for wait in some)
            print(
                f"{_NUM_BATCHES} batches, {what}, {num_clients} clients: "
                f"{len(waits) / seconds:.0f} polls/s, p50 {waits[len(waits) // 2] * 1e3:.1f} ms, "
                f"p99 {waits[int(len(waits) * 0.99)] * 1e3:.1f} ms, "
                f"{spent / len(waits) * 1e6:.0f} us of the service's CPU each"
            )


def poll(address: str, key: str, batch_id: str, seconds: str) -> None:
    """Prints the seconds that each poll took."""
    connection = http.client.HTTPConnection(address)
    waits, end = [], time.monotonic() + float(seconds)
    while (began := time.monotonic()) < end:
        connection.request("GET", f"/v1/batches/{batch_id}", headers=_headers(key))
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200
        waits.append(time.monotonic() - began)
    print(json.dumps(waits))


def transfer(address: str, key: str, megabytes: str) -> None:
    """Prints the seconds of the upload and of the download."""
    block = b"z" * (1 << 20)

    def body():  # type: ignore[no-untyped-def]
        yield _FORM + b'purpose"\r\n\r\nbatch\r\n' + _FORM + b'file"; filename="a.jsonl"\r\n\r\n'
        for _ in range(int(megabytes)):
            yield block
        yield b"\r\n--x--\r\n"

    connection = http.client.HTTPConnection(address)
    began = time.monotonic()
    headers = {**_headers(key), "content-type": "multipart/form-data; boundary=x"}
    connection.request("POST", "/v1/files", body(), headers, encode_chunked=True)
    file = json.load(connection.getresponse())
    up_s, began = time.monotonic() - began, time.monotonic()
    connection.request("GET", f"/v1/files/{file['id']}/content", headers=_headers(key))
    answer, num_bytes = connection.getresponse(), 0
    while chunk := answer.read(1 << 20):
        num_bytes += len(chunk)
    assert num_bytes == file["bytes"]
    print(json.dumps([up_s, time.monotonic() - began]))


def _headers(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def resident_mb() -> float:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024


if __name__ == "__main__":
    main()
