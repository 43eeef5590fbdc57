"""CTranslate2's generator in static batches sorted by prompt length, float32.

Arguments: CTRANSLATE2_MODEL_FOLDER ROWS_AT_ONCE 0 WORKLOAD...
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import ctranslate2
from result import report
from workloads import load_workload


def main(folder: str, rows_at_once: str, _drafts: str, *names: str) -> None:
    size = int(rows_at_once)
    generator = ctranslate2.Generator(
        folder, compute_type="float32", inter_threads=1, intra_threads=os.cpu_count() or 1
    )
    tokens = json.loads((Path(folder) / "vocabulary.json").read_text())

    def generate(prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        results = generator.generate_batch(
            [[tokens[i] for i in prompt] for prompt in prompts],
            max_batch_size=0,
            max_length=num_tokens,
            min_length=num_tokens,
            sampling_topk=1,
            beam_size=1,
            include_prompt_in_result=False,
            end_token=[],
        )
        return [result.sequences_ids[0] for result in results]

    generate([[5, 6, 7, 8]], 4)
    for name in names:
        requests = sorted(load_workload(name), key=lambda request: len(request.prompt_ids))
        begun = time.perf_counter()
        answers: dict[str, list[int]] = {}
        for at in range(0, len(requests), size):
            batch = requests[at : at + size]
            rows = generate([r.prompt_ids for r in batch], max(r.max_new for r in batch))
            answers |= {r.id: row[: r.max_new] for r, row in zip(batch, rows, strict=True)}
        report(name, time.perf_counter() - begun, answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
