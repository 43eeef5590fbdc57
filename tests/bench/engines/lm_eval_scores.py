"""Scores rows with lm-evaluation-harness over transformers (its HFLM), at its best batch size.

Arguments: MODEL_FOLDER ROWS_FILE RESULT_FILE BATCH_SIZE. The first rows warm up.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM


def main(folder: str, rows_file: str, result_file: str, batch_size: str) -> None:
    model = HFLM(pretrained=folder, dtype="float32", device="cpu", batch_size=int(batch_size))
    results: list[dict[str, object]] = []
    warm_up, *tasks = json.loads(Path(rows_file).read_text())
    for rows in (warm_up, *tasks):
        requests = [
            Instance("loglikelihood", {}, (context, choice), i)
            for i, (context, choices) in enumerate(rows)
            for choice in choices
        ]
        begun, cpu_begun = time.perf_counter(), time.process_time()
        found = iter(model.loglikelihood(requests, disable_tqdm=True))
        results.append(
            {
                "seconds": time.perf_counter() - begun,
                "cpu_seconds": time.process_time() - cpu_begun,
                "sums": [[next(found)[0] for _ in choices] for _, choices in rows],
            }
        )
    Path(result_file).write_text(json.dumps(results[1:]))


if __name__ == "__main__":
    main(*sys.argv[1:])
