"""Scores rows with Gristmill's own Engine: lines of /v1/score, read, tokenised and computed.

Arguments: MODEL_FOLDER ROWS_FILE RESULT_FILE. The first rows warm up and are not reported.
"""

from __future__ import annotations

import io
import json
import math
import sys
import time
from pathlib import Path

from gristmill.models import find_model
from gristmill.requests.prepare import prepare
from gristmill.requests.tokenise import Tokeniser
from gristmill.settings import Settings
from gristmill_worker.build import build_engine
from gristmill_worker.choices import computed_choices, of_choice
from gristmill_worker.models.loader import load_model


def main(folder: str, rows_file: str, result_file: str) -> None:
    settings = Settings()
    model = find_model(folder, settings=settings, served_names=["M"])
    loaded = load_model(Path(folder), cache_dir=settings.cache_dir)
    tokeniser = Tokeniser(model)
    results: list[dict[str, object]] = []
    warm_up, *tasks = json.loads(Path(rows_file).read_text())
    for rows in (warm_up, *tasks):
        # A new Engine each time: what lies in the prefix cache must not help.
        engine = build_engine(loaded, cache_dir=settings.cache_dir)
        source = io.BytesIO("\n".join(line(i, *row) for i, row in enumerate(rows)).encode())
        begun, cpu_begun = time.perf_counter(), time.process_time()
        places: dict[str, tuple[str, int]] = {}
        sums = {str(i): [0.0] * len(choices) for i, (_, choices) in enumerate(rows)}
        windows = prepare(
            source, model=model, settings=settings, batch_seed=b"", tokeniser=tokeniser
        )
        for window in windows:
            assert not window.refused, window.refused
            for job in window.jobs:
                for c in computed_choices(job):
                    seq_id = f"{job.rows[0].custom_id}/{c}"
                    engine.add(seq_id, of_choice(job, c))
                    places[seq_id] = job.rows[0].custom_id, c
        num_tokens = 0
        while engine.num_live:
            output = engine.step()
            num_tokens += output.num_prefill_tokens
            for end in output.finished:
                row, c = places[end.seq_id]
                sums[row][c] = math.fsum(at.logprob for at in end.scored)
        results.append(
            {
                "seconds": time.perf_counter() - begun,
                "cpu_seconds": time.process_time() - cpu_begun,
                "num_tokens": num_tokens,
                "sums": [sums[str(i)] for i in range(len(rows))],
            }
        )
    Path(result_file).write_text(json.dumps(results[1:]))


def line(i: int, context: str, choices: list[str]) -> str:
    body = {"model": "M", "type": "choices", "context": context, "choices": choices}
    url = "/v1/score"
    return json.dumps({"custom_id": str(i), "method": "POST", "url": url, "body": body})


if __name__ == "__main__":
    main(*sys.argv[1:])
