"""Scores from an input file to result lines, by the command, on a tiny model."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from gristmill_process import Gristmill

WORDS = [
    "Paris",
    "Rome",
    "a",
    "name",
    "of",
    "some",
    "number",
    "the",
    "test",
    "says",
    "what",
    "it",
    "is",
]


def lines_of(url: str, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"custom_id": str(i), "method": "POST", "url": url, "body": {"model": "tiny", **body}}
        for i, body in enumerate(bodies)
    ]


def answers(gristmill: Gristmill, url: str, bodies: list[dict[str, Any]]) -> list[Any]:
    gristmill.write(lines_of(url, bodies))
    done = gristmill.run()
    assert done.returncode == 0, done.stderr
    text = gristmill.output.read_text(encoding="utf-8")
    found = [json.loads(line, parse_constant=refuse) for line in text.splitlines()]
    return [line["response"]["body"] for line in found]


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def reference(folder: Path, ids: list[int]) -> list[float]:
    """The log-probability of each token but the first, by a plain pass in float64."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return [float(logits[i, token_id]) for i, token_id in enumerate(ids[1:])]


def test_B66_echo_and_scoring_have_the_same_sums_and_so_the_same_accuracy(
    gristmill: Gristmill, tiny_model: Path
) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    chance = random.Random(3)
    items = [
        (f"Which is {i}? The answer is", [f" {chance.choice(WORDS)} {i}", f" {WORDS[i]}"])
        for i in range(8)
    ]
    scored = answers(
        gristmill,
        "/v1/score",
        [{"type": "choices", "context": c, "choices": choices} for c, choices in items],
    )

    echoed = answers(
        gristmill,
        "/v1/completions",
        [
            {
                "prompt": [context + choice for choice in choices],
                "echo": True,
                "logprobs": 1,
                "max_tokens": 0,
            }
            for context, choices in items
        ],
    )

    for (context, choices), by_score, by_echo in zip(items, scored, echoed, strict=True):
        num_context = len(tokenizer.encode(context).ids)
        sums = []
        for choice, entry in zip(choices, by_echo["choices"], strict=True):
            values = entry["logprobs"]["token_logprobs"]
            assert entry["text"] == context + choice and entry["finish_reason"] == "length"
            assert values[0] is None and len(values) == len(entry["logprobs"]["text_offset"])
            ids = tokenizer.encode(context + choice).ids
            assert values[1:] == pytest.approx(reference(tiny_model, ids), abs=1e-4)
            sums.append(math.fsum(values[num_context:]))
        found = [entry["sum_logprob"] for entry in by_score["choices"]]
        assert found == pytest.approx(sums, rel=1e-5)
        assert by_score["best"]["sum_logprob"] == sums.index(max(sums))
        assert by_echo["usage"]["completion_tokens"] == 0


def test_B64_offsets_of_an_echo_point_into_prompt_and_answer(gristmill: Gristmill) -> None:
    # Characters of several bytes, in the prompt and between two of its tokens.
    [body] = answers(
        gristmill,
        "/v1/completions",
        [
            {
                "prompt": "naïve 😀 it is",
                "echo": True,
                "logprobs": 2,
                "max_tokens": 5,
                "seed": 1,
                "n": 2,
            }
        ],
    )

    for entry in body["choices"]:
        logprobs, text = entry["logprobs"], entry["text"]
        assert text.startswith("naïve 😀 it is")
        lengths = {len(logprobs[name]) for name in logprobs}
        assert lengths == {body["usage"]["prompt_tokens"] + 5}
        assert logprobs["text_offset"] == sorted(logprobs["text_offset"])
        for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
            if not token.startswith("bytes:") and "<|" not in token and "\ufffd" not in text:
                assert text[offset:].startswith(token)


def test_B60_a_rolled_text_is_that_of_a_direct_computation(
    gristmill: Gristmill, tiny_model: Path
) -> None:
    text = " ".join(random.Random(1).choices(WORDS, k=60))

    [whole, rolled] = answers(
        gristmill,
        "/v1/score",
        [
            {"type": "rolling", "text": text},
            {"type": "rolling", "text": text, "window": 32, "stride": 8},
        ],
    )

    ids = whole["token_ids"]
    from tokenizers import Tokenizer

    end = Tokenizer.from_file(str(tiny_model / "tokenizer.json")).token_to_id("<|im_end|>")
    expected = reference(tiny_model, [end, *ids])
    assert whole["token_logprobs"] == pytest.approx(expected, abs=1e-4)
    assert whole["sum_logprob"] == pytest.approx(sum(expected), rel=1e-4)
    assert whole["token_perplexity"] == pytest.approx(math.exp(-sum(expected) / len(ids)))
    assert rolled["token_ids"] == ids and rolled["num_windows"] == 1 + -(-(len(ids) - 32) // 8)
    assert rolled["token_logprobs"][:32] == pytest.approx(expected[:32], abs=1e-4)
    # The last window: its own context, from a plain pass over it.
    last = reference(tiny_model, ids[len(ids) - 33 :])
    assert rolled["token_logprobs"][-1] == pytest.approx(last[-1], abs=1e-4)
