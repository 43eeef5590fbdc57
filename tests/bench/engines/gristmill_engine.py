"""Gristmill's own Engine, as a worker builds it.

Arguments: MODEL_FOLDER ROWS_AT_ONCE DRAFTS WORKLOAD...  (DRAFTS: 0 turns draft tokens off)
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from pathlib import Path

from result import report
from workloads import load_workload

from gristmill.settings import Settings
from gristmill.types import Job, Prompt, Row, SamplingParams
from gristmill_worker.build import build_engine
from gristmill_worker.models.loader import load_model


def main(folder: str, rows_at_once: str, drafts: str, *names: str) -> None:
    loaded = load_model(Path(folder), cache_dir=Settings().cache_dir)
    for name in ("a8", *names):  # the first warms up and is not reported
        # A new engine each time: what one workload left in the prefix cache must not help.
        engine = build_engine(
            loaded,
            cache_dir=Settings().cache_dir,
            max_num_seqs=int(rows_at_once),
            drafts=drafts != "0",
        )
        begun = time.perf_counter()
        # Identical greedy rows are one Job, and Jobs are in the order of their prompts: as ingest
        # does it (gristmill.requests.window).
        rows_of: dict[tuple[tuple[int, ...], int], list[str]] = defaultdict(list)
        for request in load_workload(name):
            rows_of[tuple(request.prompt_ids), request.max_new].append(request.id)
        rows = {}
        for (prompt_ids, max_new), ids in sorted(rows_of.items()):
            params = SamplingParams(max_new, temperature=0.0, ignore_eos=True)
            engine.add(
                ids[0], Job(tuple(Row(0, row) for row in ids), (Prompt(prompt_ids),), params)
            )
            rows[ids[0]] = ids
        answers: dict[str, list[int]] = {}
        while engine.num_live:
            for end in engine.step().finished:
                answers |= {row: list(end.generated.token_ids) for row in rows[end.seq_id]}
        if name in names:
            report(name, time.perf_counter() - begun, answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
