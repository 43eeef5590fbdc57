"""A Parquet file of a million rows, read and rendered to request lines: rows/s, and memory.

    python tests/bench/data_sets.py                  # 1,000,000 rows of about 200 bytes
    python tests/bench/data_sets.py --rows 100000 --formats parquet csv jsonl.zst

Each format is read in a process of its own. Flat memory: the peak after all rows beside that after
a tenth of them.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from _memory import peak_mib

from gristmill.client.rows import Recipe
from gristmill.data import Template, read_rows, write_rows

FORMATS = ("parquet", "arrow", "csv", "jsonl", "jsonl.zst")
GOAL = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--formats", nargs="+", default=["parquet"], choices=FORMATS)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.read:
        print(json.dumps(measure(args.read, args.rows)))
        return
    with tempfile.TemporaryDirectory() as folder:
        for suffix in args.formats:
            path = Path(folder) / f"rows.{suffix}"
            began = time.perf_counter()
            write_rows(path, rows(args.rows))
            written_s = time.perf_counter() - began
            command = [sys.executable, __file__, "--read", str(path), "--rows", str(args.rows)]
            found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            show(suffix, path, args.rows, written_s, found)


def show(suffix: str, path: Path, num_rows: int, written_s: float, found: dict[str, Any]) -> None:
    rate = num_rows / found["seconds"]
    print(f"{suffix}: {num_rows:,} rows, {path.stat().st_size / 1e6:.0f} MB")
    print(f"  written     {num_rows / written_s:,.0f} rows/s")
    print(f"  read and rendered  {rate:,.0f} rows/s ({found['cpu_s']:.1f} s of CPU), goal {GOAL:,}")
    print(f"  request lines  {found['bytes'] / 1e6:.0f} MB")
    print(
        f"  peak RSS    {found['peak_mib']:.0f} MiB, {found['peak_at_tenth_mib']:.0f} MiB at a "
        f"tenth of the rows, {found['start_mib']:.0f} MiB before"
    )


def rows(count: int) -> Iterator[dict[str, Any]]:
    """Rows of five columns, among them a text of about 150 characters."""
    chance = random.Random(3)
    words = [chance.randbytes(chance.randint(2, 5)).hex() for _ in range(2000)]
    for i in range(count):
        yield {
            "id": f"doc-{i:08}",
            "title": " ".join(chance.choices(words, k=4)),
            "text": " ".join(chance.choices(words, k=20)),
            "stars": chance.randint(1, 5),
            "price": round(chance.random() * 100, 2),
        }


def measure(path: Path, num_rows: int) -> dict[str, float]:
    recipe = Recipe(
        model="M",
        template=Template('{title} ({price} €, {stars} stars)\n\n{text}\n\nIn one word: "{{"?'),
        system=Template("You sum up reviews of {title}."),
        id_column="id",
        params={"temperature": 0},
    )
    next(read_rows(path))  # imports
    began, cpu, start_mib = time.perf_counter(), time.process_time(), peak_mib()
    lines = map(msgspec.json.Encoder().encode, recipe.requests(path))
    num_bytes = sum(map(len, islice(lines, num_rows // 10)))
    at_tenth = peak_mib()
    num_bytes += sum(map(len, lines))
    return {
        "seconds": time.perf_counter() - began,
        "cpu_s": time.process_time() - cpu,
        "bytes": num_bytes,
        "start_mib": start_mib,
        "peak_at_tenth_mib": at_tenth,
        "peak_mib": peak_mib(),
    }


if __name__ == "__main__":
    main()
