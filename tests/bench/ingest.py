"""What ingest costs beside bare tokenising: seconds, memory, and their ratio.

    python tests/bench/ingest.py --model smollm2-135m

Writes a file of chat requests (50,000 lines), submits it to a Ledger (SQLite) and a Store (a
folder) and reads it into Shards in a process of its own; then encodes the same texts with nothing
but `tokenizers` in another, and prints both.
"""

from __future__ import annotations

import time
from pathlib import Path

from _memory import peak_mib
from dry_run import Figures, compare, find

TENANT = "bench"


def main() -> None:
    compare(__file__, __doc__, ingest_part, show, megabytes=100)


def show(ingest: Figures, bare: Figures) -> None:
    print(f"input          {ingest['bytes'] / 1e6:.0f} MB, {ingest['rows']:.0f} rows")
    print(f"Shards         {ingest['shards']:.0f}, {ingest['prompt_tokens']:.0f} prompt tokens")
    print(f"ingest         {ingest['s']:.1f} s, {ingest['cpu_s']:.1f} s of CPU")
    for name in ("encode_batch", "encode_batch_fast"):
        seconds, cpu_s = bare[f"{name}_s"], bare[f"{name}_cpu_s"]
        ratio, in_cpu = ingest["s"] / seconds, ingest["cpu_s"] / cpu_s
        print(f"{name:<14} {seconds:.1f} s, {cpu_s:.1f} s of CPU: {ratio:.2f}, in CPU {in_cpu:.2f}")
    print(
        f"peak RSS       {ingest['peak_mib']:.0f} MiB, {ingest['peak_at_tenth_mib']:.0f} MiB at a "
        f"tenth of the rows, {ingest['start_mib']:.0f} MiB before"
    )


def ingest_part(file: Path, model_name: str) -> Figures:
    from sqlalchemy import func, select

    from gristmill.control.base import Control, read_batch
    from gristmill.control.ingest import ingest_slice
    from gristmill.control.submit import submit
    from gristmill.ledger import batches, files
    from gristmill.ledger.batch import Submission
    from gristmill.ledger.ledger import open_sqlite
    from gristmill.ledger.schema import shards
    from gristmill.queues.memory import MemoryQueue
    from gristmill.requests.tokenise import Tokeniser
    from gristmill.settings import Settings
    from gristmill.stores.keys import file_key
    from gristmill.stores.local import LocalStore
    from gristmill.types import Endpoint

    settings, folder, now = Settings(), file.parent, int(time.time())
    ledger, store = open_sqlite(folder / "ledger.sqlite"), LocalStore(folder / "store")
    control = Control(ledger, store, MemoryQueue(settings.lease_s), time.time, settings)
    model = find(model_name)
    tokeniser = Tokeniser(model)
    num_rows = sum(1 for _ in file.open("rb"))
    with file.open("rb") as source:
        store.put_stream(file_key(TENANT, "file-1"), iter(lambda: source.read(1 << 20), b""))
    with ledger.write() as conn:
        files.add(conn, files.File("file-1", TENANT, "batch", "in.jsonl", file.stat().st_size, now))
    submission = Submission(Endpoint.CHAT, "file-1", "24h")
    batch, _ = submit(
        ledger,
        store,
        settings,
        TENANT,
        submission,
        now_s=now,
        window_s=86400,
        resent_since=None,
    )
    with ledger.write() as conn:
        batches.pin_model(conn, batch, model=model.pin, options={})
    at_tenth: list[float] = []

    def should_pause() -> bool:
        if not at_tenth and read_batch(control, TENANT, batch.id).total >= num_rows / 10:
            at_tenth.append(peak_mib())
        return False

    start_mib, began, cpu = peak_mib(), time.perf_counter(), time.process_time()
    is_read = ingest_slice(
        control,
        TENANT,
        batch.id,
        lambda: store.open(file_key(TENANT, "file-1")),
        model,
        should_pause=should_pause,
        tokeniser=tokeniser,
    )
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    batch = read_batch(control, TENANT, batch.id)
    assert is_read and batch.total == num_rows, batch.errors
    with ledger.read() as conn:
        tokens = conn.execute(select(func.sum(shards.c.num_prompt_tokens))).scalar()
    return {
        "bytes": file.stat().st_size,
        "rows": num_rows,
        "shards": batch.num_shards,
        "prompt_tokens": tokens or 0,
        "s": seconds,
        "cpu_s": cpu_s,
        "start_mib": start_mib,
        "peak_at_tenth_mib": at_tenth[0],
        "peak_mib": peak_mib(),
    }


if __name__ == "__main__":
    main()
