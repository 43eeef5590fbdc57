"""lm-evaluation-harness gets the same numbers from Gristmill as from its own backend."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

#: Where `make bench-rivals` installs the harness; it may also be beside the tests.
_RIVAL = Path(__file__).parents[2] / ".rivals/lmeval/bin/python"
HARNESS = Path(sys.executable) if importlib.util.find_spec("lm_eval") else _RIVAL
PRODUCER = Path(__file__).parents[2] / "producer"

CHOICES = """
task: local_choices
dataset_path: json
dataset_kwargs: {data_files: {test: "choices.jsonl"}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}} The answer is "
doc_to_choice: "{{choices}}"
doc_to_target: gold
target_delimiter: ""
metric_list: [{metric: acc}, {metric: acc_norm}, {metric: acc_bytes}]
"""
ROLLING = """
task: local_rolling
dataset_path: json
dataset_kwargs: {data_files: {test: "texts.jsonl"}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
"""


def evaluate(folder: Path, which: str, model_args: str, *, module: str) -> Any:
    out = folder / which
    subprocess.run(
        [
            *(str(HARNESS), "-m", module, "run", "--model", which, "--model_args", model_args),
            *("--tasks", "local_choices", "local_rolling", "--include_path", str(folder)),
            *("--output_path", str(out), "--log_samples", "--device", "cpu", "--batch_size", "2"),
        ],
        check=True,
        cwd=folder,
        env=os.environ
        | {
            "PYTHONPATH": str(PRODUCER),
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_CACHE": str(folder / "datasets"),
            "XDG_CACHE_HOME": str(folder / "cache"),
        },
    )
    [results] = out.rglob("results_*.json")
    samples = {
        path.name.split("_2")[0]: [json.loads(line) for line in path.read_text().splitlines()]
        for path in out.rglob("samples_*.jsonl")
    }
    return json.loads(results.read_text())["results"], samples


@pytest.mark.slow
@pytest.mark.skipif(not HARNESS.is_file(), reason="needs lm-eval: make bench-rivals")
def test_two_local_tasks_have_the_numbers_of_its_transformers_backend(
    tmp_path: Path, tiny_model: Path
) -> None:
    (tmp_path / "choices.yaml").write_text(CHOICES)
    (tmp_path / "rolling.yaml").write_text(ROLLING)
    texts = Path(__file__).read_text(encoding="utf-8").split("\n\n")
    questions = [
        {"question": f"Which is it, {i}? {text[:200]}", "choices": words, "gold": i % 3}
        for i, text in enumerate(texts[:10])
        for words in [["Paris", "a name, naïve", f"number {i} of some"]]
    ]
    (tmp_path / "choices.jsonl").write_text("\n".join(map(json.dumps, questions)))
    # The second one is longer than the window.
    documents = [{"text": texts[0]}, {"text": "\n".join(texts)}, {"text": "Ein Wort é 😀"}]
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, documents)))

    command = Path(sys.executable).with_name("gristmill")
    ours, our_samples = evaluate(
        tmp_path,
        "gristmill",
        f"model={tiny_model},command={command}",
        module="gristmill.lm_eval",
    )
    theirs, their_samples = evaluate(
        tmp_path, "hf", f"pretrained={tiny_model},dtype=float32", module="lm_eval"
    )

    assert ours.keys() == theirs.keys() == {"local_choices", "local_rolling"}
    for task in ours:
        for name, value in theirs[task].items():
            if isinstance(value, float):
                assert ours[task][name] == pytest.approx(value, rel=1e-4), (task, name)
    assert our_samples.keys() == their_samples.keys()
    num_compared = 0
    for name, samples in their_samples.items():
        for our, their in zip(our_samples[name], samples, strict=True):
            pairs = zip(our["filtered_resps"], their["filtered_resps"], strict=True)
            for a, b in pairs:
                assert numbers(a) == pytest.approx(numbers(b), rel=1e-4)
                num_compared += 1
    assert num_compared >= 10 * 3 + 3


def numbers(answer: Any) -> list[float]:
    """A sum, or a sum and whether it is greedy; the harness writes them as it likes."""
    parts = answer if isinstance(answer, list) else [answer]
    return [float({"True": 1, "False": 0}.get(str(part), part)) for part in parts]
