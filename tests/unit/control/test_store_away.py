"""A batch whose files cannot be written yet waits at its end, and is not told to be complete."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from mixed_batch import answer_all
from pipeline import Bench
from submitted_batch import read_all, submit_batch

from gristmill.control.sweep import sweep
from gristmill.errors import StoreError
from gristmill.ledger.status import BatchStatus


def test_B43_a_batch_stays_in_finalizing_until_its_files_are_written(bench: Bench) -> None:
    submit_batch(bench)
    read_all(bench)
    answer_all(bench)
    away = patch.object(type(bench.store), "put_stream", side_effect=StoreError("slow down"))

    with away:
        for _ in range(3):
            with pytest.raises(StoreError):
                sweep(bench.control)
            assert bench.batch.status is BatchStatus.FINALIZING
            assert bench.batch.output_file_id is None
    sweep(bench.control)

    assert bench.batch.status is BatchStatus.COMPLETED
    assert len(bench.lines("output") or []) == 8
