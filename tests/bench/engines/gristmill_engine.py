"""Gristmill's own Engine, as a worker builds it.

Arguments: MODEL_FOLDER ROWS_AT_ONCE WORKLOAD...
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from result import report
from workloads import load_workload

from gristmill.settings import Settings
from gristmill.types import Job, Row, SamplingParams
from gristmill_worker.build import build_engine
from gristmill_worker.models.loader import load_model


def main(folder: str, rows_at_once: str, *names: str) -> None:
    loaded = load_model(Path(folder))
    for name in ("a8", *names):  # the first warms up and is not reported
        # A new engine each time: what one workload left in the prefix cache must not help.
        engine = build_engine(
            loaded, cache_dir=Settings().cache_dir, max_num_seqs=int(rows_at_once)
        )
        begun = time.perf_counter()
        for request in load_workload(name):
            params = SamplingParams(request.max_new, temperature=0.0, ignore_eos=True)
            engine.add(request.id, Job((Row(0, request.id),), tuple(request.prompt_ids), params))
        answers: dict[str, list[int]] = {}
        while engine.num_live:
            for end in engine.step().finished:
                answers[end.seq_id] = list(end.generated.token_ids)
        if name in names:
            report(name, time.perf_counter() - begun, answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
