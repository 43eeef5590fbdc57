"""What finalize costs beside a plain copy of the bytes that it writes: seconds, memory, ratio.

    python tests/bench/finalize.py [--rows 50000]

A Ledger (SQLite) and a Store (a folder) with a batch whose rows all have their result, in
Segments of 64. Once nothing is merged before the end, and once all that can be before the results
of the last Shard are there, as while a batch runs. The copy reads the output file and writes it
again through the same Store, which fsyncs all that it writes: with a sha256, as an upload and
finalize make one (it is told with each download), and without.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "integration")]

from _memory import peak_mib  # noqa: E402
from pipeline import TENANT, Bench, make_segment, make_windows  # noqa: E402

from gristmill.control.accept import accept, accept_unheard  # noqa: E402
from gristmill.control.dispatch import dispatch  # noqa: E402
from gristmill.control.finalize import finalize, freeze, merge_ahead  # noqa: E402
from gristmill.ledger.status import FreezeReason  # noqa: E402
from gristmill.process.garbage import look_for_garbage_seldom  # noqa: E402
from gristmill.settings import Settings  # noqa: E402
from gristmill.stores.keys import file_key, segment_key, shard_key  # noqa: E402
from gristmill.stores.segments import bell_of  # noqa: E402
from gristmill.types import (  # noqa: E402
    Choice,
    FinishReason,
    Job,
    Prompt,
    Row,
    RowResult,
    SamplingParams,
    Usage,
)
from gristmill.wire import decode_shard, encode_segment  # noqa: E402

_ROWS_OF_SEGMENT = 64
_ROWS_OF_WINDOW = 4096
_NUM_COPIES = 5
_WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "\u00e9crit", "un", "\u4f60\u597d")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--words", type=int, default=150, help="of an answer, about")
    parser.add_argument("--part", choices=["prepare", "whole", "last"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part == "prepare":
        prepare(args.folder, args.rows, args.words)
    elif args.part:
        print(json.dumps(measure(args.folder, only_last=args.part == "last")))
    else:
        for num_rows in (args.rows // 10, args.rows):
            for part in ("whole", "last"):
                with TemporaryDirectory() as folder:
                    run_part("prepare", folder, num_rows, args.words)
                    found = json.loads(run_part(part, folder, num_rows, args.words))
                    show(num_rows, part, found)


def run_part(part: str, folder: str, num_rows: int, words: int) -> bytes:
    command = [sys.executable, __file__, "--part", part, "--folder", folder]
    command += ["--rows", str(num_rows), "--words", str(words)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def show(num_rows: int, part: str, found: dict[str, float]) -> None:
    print(
        f"{num_rows} rows, {part}, {found['bytes'] / 1e6:.0f} MB: finalize {found['s']:.2f} s "
        f"({found['cpu_s']:.2f} s of CPU); copy with sha256 {found['hashed_copy_s']:.3f} s, ratio "
        f"{found['s'] / found['hashed_copy_s']:.1f}; without {found['copy_s']:.3f} s, ratio "
        f"{found['s'] / found['copy_s']:.1f}; peak RSS {found['peak_mib']:.0f} MiB, "
        f"{found['start_mib']:.0f} MiB before"
    )


def open_bench(folder: Path) -> Bench:
    return Bench(folder, settings=Settings())


def prepare(folder: Path, num_rows: int, words: int) -> None:
    bench, rng = open_bench(folder), random.Random(7)
    bench.create()
    starts = range(0, num_rows, _ROWS_OF_WINDOW)
    windows = make_windows(
        *([make_job(i) for i in range(at, min(at + _ROWS_OF_WINDOW, num_rows))] for at in starts)
    )
    bench.ingest(windows)
    for n in range(bench.batch.num_shards):
        key = shard_key(TENANT, bench.batch_id, bench.batch.run_id, n)
        jobs = list(enumerate(decode_shard(bench.store.get(key)).jobs))
        rng.shuffle(jobs)
        for seq, at in enumerate(range(0, len(jobs), _ROWS_OF_SEGMENT)):
            results = [answer(job, i, words, rng) for i, job in jobs[at : at + _ROWS_OF_SEGMENT]]
            segment = make_segment(bench.batch, n, results, seq=seq)
            bench.store.put(segment_key(bell_of(segment)), encode_segment(segment))
            if n < bench.batch.num_shards - 1:
                accept(bench.control, [bell_of(segment)])
    assert dispatch(bench.control) == 1  # the last one is with a worker
    bench.ledger.close()


def make_job(idx: int) -> Job:
    prompt = Prompt(tuple((idx * 31 + i) % 49_000 for i in range(200)))
    return Job((Row(idx, f"row-{idx:07}"),), (prompt,), SamplingParams(max_tokens=512))


def answer(job: Job, idx: int, words: int, rng: random.Random) -> RowResult:
    num_words = int(words * rng.uniform(0.5, 1.5))
    text = " ".join(rng.choices(_WORDS, k=num_words))
    ids = tuple(rng.randrange(49_000) for _ in range(num_words))
    choice = Choice(ids, text, FinishReason.STOP)
    usage = Usage(len(job.prompt_ids), num_words)
    return RowResult(idx, job.rows, usage, (choice,), finished_at=5, ttft_s=0.5, itl_s=0.02)


def measure(folder: Path, *, only_last: bool) -> dict[str, float]:
    bench = open_bench(folder)
    look_for_garbage_seldom()  # as `gristmill control` does
    while only_last and merge_ahead(bench.control):
        pass
    accept_unheard(bench.control, bench.batch)
    assert bench.batch.completed == bench.batch.total
    start_mib, began, cpu = peak_mib(), time.perf_counter(), time.process_time()
    freeze(bench.control, bench.batch, FreezeReason.COMPLETE)
    finalize(bench.control, TENANT, bench.batch_id)
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    peak = peak_mib()
    key = file_key(TENANT, bench.batch.output_file_id or "")
    num_bytes, copy_s = copy(bench, key, hashed=False)
    _, hashed_copy_s = copy(bench, key, hashed=True)
    return {
        "bytes": num_bytes,
        "s": seconds,
        "cpu_s": cpu_s,
        "copy_s": copy_s,
        "hashed_copy_s": hashed_copy_s,
        "peak_mib": peak,
        "start_mib": start_mib,
    }


def copy(bench: Bench, key: str, *, hashed: bool) -> tuple[int, float]:
    """Bytes, and seconds: the best of a few, so that finalize is not flattered by a busy disk."""
    seconds, num_bytes = [], 0
    for _ in range(_NUM_COPIES):
        digest = hashlib.sha256() if hashed else None
        began = time.perf_counter()
        with bench.store.open(key) as source:
            num_bytes = bench.store.put_stream("copy", chunks(source, digest))
        seconds.append(time.perf_counter() - began)
    return num_bytes, min(seconds)


def chunks(source: BinaryIO, digest: hashlib._Hash | None) -> Iterator[bytes]:
    while chunk := source.read(1 << 20):
        if digest:
            digest.update(chunk)
        yield chunk


if __name__ == "__main__":
    main()
