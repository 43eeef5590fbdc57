"""A service that dies in the middle and at the end of a batch: its counts and rows are right."""

from __future__ import annotations

import signal
from typing import Any

import openai
import pytest
from house import as_file, custom_ids, make_lines
from local_run import make_line
from openai.types import Batch
from pipeline import read_lines
from test_up import Up, folder_with_model, wait_for

ORDER = ("validating", "in_progress", "finalizing", "completed")


class Watcher:
    """Asks how the batch is doing, as often as a caller may, and looks for what must not be."""

    def __init__(self, batch_id: str) -> None:
        self._batch_id = batch_id
        self._status = ORDER[0]
        self._counts = (0, 0)

    def look(self, client: openai.OpenAI) -> Batch | None:
        """None while the service is away."""
        try:
            batch = client.with_options(max_retries=0).batches.retrieve(self._batch_id)
        except openai.APIConnectionError:
            return None
        assert ORDER.index(batch.status) >= ORDER.index(self._status)
        found = batch.request_counts
        assert found is not None and found.completed + found.failed <= found.total
        counts = found.completed, found.failed
        assert all(now >= before for now, before in zip(counts, self._counts, strict=True))
        self._status, self._counts = batch.status, counts
        return batch


@pytest.mark.slow
def test_B47_a_service_that_dies_midway_and_while_it_finalizes_has_each_row_once() -> None:
    lines = make_lines(40)
    for i in range(0, 40, 8):
        lines[i] = make_line(f"row-{i}", best_of=3)
    with folder_with_model() as folder:
        up = Up(folder, pauses_after=15)
        key = up.first_key()
        client = up.client(key)
        file = client.files.create(file=("in.jsonl", as_file(lines)), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        watcher = Watcher(batch.id)

        def is_half_done() -> bool:
            found = watcher.look(client)
            return bool(found and found.request_counts and found.request_counts.completed >= 15)

        wait_for(is_half_done)
        up.stop(signal.SIGKILL)
        dying = Up(folder, crash_point="file-written=exit")
        client = dying.client(key)
        wait_for(lambda: (watcher.look(client), dying.process.poll() is not None)[1])
        last = Up(folder)
        client = last.client(key)
        ended: Any = wait_for(lambda: (b := watcher.look(client)) and b.completed_at and b)
        output = read_lines(client.files.content(ended.output_file_id).content)
        errors = read_lines(client.files.content(ended.error_file_id).content)
        last.stop(signal.SIGTERM)

    assert dying.process.returncode == 137
    assert ended.request_counts.to_dict() == {"total": 40, "completed": 35, "failed": 5}
    assert custom_ids(errors) == [f"row-{i}" for i in range(0, 40, 8)]
    assert custom_ids(output) == [f"row-{i}" for i in range(40) if i % 8]
    # What the first life had finished was not computed again.
    attempts = [line["response"]["body"]["gristmill"]["attempt"] for line in output]
    assert len(set(attempts)) > 1
