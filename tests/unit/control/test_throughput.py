"""The rate of a batch is taken while it runs, whatever it has waited before."""

from __future__ import annotations

import pytest
from mill import Mill
from pipeline import Bench

from gristmill.ledger import throughput
from gristmill.ledger.status import BatchStatus


def test_the_wait_for_its_turn_is_no_part_of_the_rate_of_a_batch(bench: Bench) -> None:
    """Each takes 10 s at a thousand tokens a second; the last one waits for the two before."""
    bench.settings = bench.settings.model_copy(
        update={"shard_max_jobs": 4, "dispatch_window_shards": 2, "shard_max_tokens": 2000}
    )
    mill = Mill(bench)
    for i in range(3):
        mill.submit("acme", f"batch-{i}", num_jobs=20, priority=-i)

    mill.run(35)

    assert mill.batch("acme", "batch-2").status is BatchStatus.COMPLETED
    with bench.ledger.read() as conn:
        rates = throughput.list_rates(conn, "fake", since=0)
    # A Shard or two of two seconds are on the Lane before the first one is worked on.
    assert rates == pytest.approx([800, 800, 1000], abs=250)
