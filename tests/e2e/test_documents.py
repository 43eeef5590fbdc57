"""What the README and the examples show is what the command does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from gristmill_process import COMMAND, read_lines

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = ROOT / "producer/examples/requests.jsonl"


def json_blocks() -> list[object]:
    return [json.loads(block) for block in re.findall(r"^```json\n(.*?)^```", README, re.M | re.S)]


def shape(value: object) -> object:
    """Keys and types, without the values of one run."""
    if isinstance(value, dict):
        return {key: shape(field) for key, field in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    return type(value).__name__


def test_the_request_of_the_readme_gets_an_answer_of_the_shape_shown(gristmill):
    request, answer = json_blocks()
    gristmill.write([request])

    done = gristmill.run("--served-model-name", "smollm2-135m")

    assert done.returncode == 0, done.stderr
    (row,) = read_lines(gristmill.output)
    assert shape(row) == shape(answer)


def test_the_scores_of_the_readme_are_answered_as_it_says(gristmill):
    [block] = re.findall(r"^```jsonl\n(.*?)^```", README, re.M | re.S)
    gristmill.write(block.splitlines())

    done = gristmill.run("--served-model-name", "smollm2-135m")

    assert done.returncode == 0, done.stderr
    bodies = [row["response"]["body"] for row in read_lines(gristmill.output)]
    assert [body["type"] for body in bodies] == ["choices", "loglikelihood", "rolling"]
    choices, one, rolled = bodies
    first = choices["choices"][0]
    assert {"sum_logprob", "token_logprobs", "token_ids", "is_greedy"} <= first.keys()
    assert set(choices["best"].values()) <= {0, 1}
    assert {"logprob_per_token", "logprob_per_byte"} <= one.keys()
    assert {f"{unit}_perplexity" for unit in ("token", "word", "byte")} <= rolled.keys()


@pytest.mark.parametrize("endpoint", ["CHAT", "COMPLETIONS", "EMBEDDINGS", "SCORE"])
def test_every_parameter_is_in_the_readme(endpoint):
    from gristmill.requests.bodies import ChatBody, CompletionBody
    from gristmill.requests.embeddings import EmbeddingBody
    from gristmill.requests.score_body import ScoreBody

    bodies = {
        "CHAT": ChatBody,
        "COMPLETIONS": CompletionBody,
        "EMBEDDINGS": EmbeddingBody,
        "SCORE": ScoreBody,
    }
    names = bodies[endpoint].model_fields.keys() - {"model"}

    assert [name for name in sorted(names) if not re.search(rf'[`"]{name}[`":]', README)] == []


def test_the_exit_codes_of_the_readme_are_all_there():
    from gristmill.cli.failures import ExitCode

    table = README.split("**Exit codes**")[1].split("\n\n")[1]
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)]

    assert codes == sorted(ExitCode)


def test_the_examples_are_many_and_varied():
    bodies = [row["body"] for row in read_lines(EXAMPLES)]

    assert len(bodies) >= 24
    assert len({row["custom_id"] for row in read_lines(EXAMPLES)}) == len(bodies)
    assert {name for body in bodies for name in body} >= {
        *("max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p"),
        *("seed", "stop", "logit_bias", "n", "logprobs", "frequency_penalty", "min_tokens"),
    }


@pytest.mark.real_model
def test_the_examples_are_all_answered_and_shown(smollm2_folder, tmp_path):
    # smollm2_folder: the model is converted, in the default cache that `make run` uses too.
    output = tmp_path / "answers.jsonl"
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}

    done = subprocess.run(
        [COMMAND, "run", EXAMPLES, "-o", output, "--model", "smollm2-135m"],
        capture_output=True,
        text=True,
        env=environment,
    )
    shown = subprocess.run(
        [sys.executable, ROOT / "producer/examples/show.py", EXAMPLES, output],
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    answers = {row["custom_id"]: row["response"]["body"] for row in read_lines(output)}
    assert list(answers) == [row["custom_id"] for row in read_lines(EXAMPLES)]
    assert "Paris" in answers["capital-france"]["choices"][0]["message"]["content"]
    assert "Paris" in shown.stdout
