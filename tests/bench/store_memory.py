"""Memory and speed of one object's way into a Store and back, for small and large objects."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "services"))

from _memory import peak_mib
from aws_server import running_aws

from gristmill.stores.base import Store
from gristmill.stores.open import open_store

BLOCK = os.urandom(1_000_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, nargs="*", default=[20, 300])
    sizes = parser.parse_args().megabytes
    print(f"{'store':6} {'MB':>5} {'put MB/s':>9} {'get MB/s':>9} {'peak RSS MB':>12}")
    with tempfile.TemporaryDirectory() as folder, running_aws() as aws:
        for name, url in (("local", folder), ("s3", aws.s3_url(aws.new_bucket()))):
            for num_blocks in sizes:
                measure(name, open_store(url), num_blocks)


def measure(name: str, store: Store, num_blocks: int) -> None:
    sent, found = hashlib.sha256(), hashlib.sha256()

    def chunks() -> Iterator[bytes]:
        for _ in range(num_blocks):
            sent.update(BLOCK)
            yield BLOCK

    began = time.perf_counter()
    store.put_stream("t/x", chunks())
    put_s = time.perf_counter() - began
    began = time.perf_counter()
    with store.open("t/x") as file:
        while piece := file.read(1_000_000):
            found.update(piece)
    get_s = time.perf_counter() - began
    assert found.digest() == sent.digest(), "other bytes came back"
    store.delete("t/x")
    speeds = f"{num_blocks / put_s:9.0f} {num_blocks / get_s:9.0f}"
    print(f"{name:6} {num_blocks:5} {speeds} {peak_mib():12.0f}")


if __name__ == "__main__":
    main()
