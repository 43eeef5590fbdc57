"""Log-probabilities through the Engine: the same in company, after preemption and on resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from drive import make_engine, run
from tiny import greedy_job, prompts
from tokenizers import Tokenizer, decoders, models

from gristmill.types import Job, Prompt, Row, SamplingParams
from gristmill_worker.engine.base import Finished, Generated
from gristmill_worker.engine.detokenizer import text_offsets
from gristmill_worker.engine.token_bytes import TokenBytes


def logprobs_of(model: Any, prompt: list[int], output: list[int]) -> list[torch.Tensor]:
    """The model's distribution before each output token, all in one pass without a cache."""
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *output]]), use_cache=False).logits[0]
    return list(logits[len(prompt) - 1 : -1].double().log_softmax(-1))


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"temperature": 1.0, "top_p": 0.1},
        {"temperature": 1.0, "top_k": 2, "frequency_penalty": 2.0, "logit_bias": ((5, -100.0),)},
    ],
)
def test_B65_values_are_the_models_own_whatever_the_parameters(
    model_pair: Any, name: str, params: dict[str, Any]
) -> None:
    oracle, loaded = model_pair(name)
    [prompt] = prompts([9])
    sampling = SamplingParams(12, seed=4, ignore_eos=True, logprobs=3, **params)

    end = run(
        make_engine(loaded), [("row", Job((Row(0, "r"),), (Prompt(tuple(prompt)),), sampling))]
    )["row"]

    ids = list(end.generated.token_ids)
    expected = logprobs_of(oracle, prompt, ids)
    assert len(end.generated.logprobs) == len(end.text_offsets) == len(ids) == 12
    for token_id, report, distribution in zip(ids, end.generated.logprobs, expected, strict=True):
        assert report.logprob == pytest.approx(float(distribution[token_id]), abs=1e-4)
        assert len(report.top) == 3
        for other, value in report.top:
            assert value == pytest.approx(float(distribution[other]), abs=1e-4)
    assert set(end.token_bytes) >= {*ids}


def test_B29_lists_are_complete_and_equal_after_preemption_and_on_resume(model_pair: Any) -> None:
    _, loaded = model_pair("llama")
    rows = prompts([16, 17, 18, 19])
    jobs = [
        greedy_job(row, 40, ignore_eos=True, logprobs=i, frequency_penalty=0.3)
        for i, row in enumerate(rows)
    ]
    alone = [run(make_engine(loaded), [("row", job)])["row"] for job in jobs]

    crowded = run(
        make_engine(loaded, num_blocks=30, expected_output_tokens=1.0),
        [(str(i), job) for i, job in enumerate(jobs)],
    )
    resumed = {}
    for i, end in enumerate(alone):
        engine = make_engine(loaded)
        whole = end.generated
        at = 1 + 13 * i  # the last one has finished, and has only to be read
        begun = Generated(whole.token_ids[:at], whole.times_ms[:at], whole.logprobs[:at])
        engine.add("row", jobs[i], begun)
        resumed[i] = run(engine, [])["row"]

    for i, end in enumerate(alone):
        assert len(end.generated.logprobs) == 40
        for other in (crowded[str(i)], resumed[i]):
            assert same(other, end)


def same(one: Finished, other: Finished) -> bool:
    """Plain layers round differently in other company, so values are equal within that."""

    def told(end: Finished) -> list[object]:
        top_ids = [[token_id for token_id, _ in at.top] for at in end.generated.logprobs]
        return [end.generated.token_ids, top_ids, end.text, end.text_offsets, end.token_bytes]

    def values(end: Finished) -> list[float]:
        logprobs = end.generated.logprobs
        return [v for at in logprobs for v in (at.logprob, *(value for _, value in at.top))]

    return told(one) == told(other) and values(one) == pytest.approx(values(other), abs=1e-4)


@pytest.mark.real_model
def test_bytes_of_real_tokens_join_to_the_text(smollm2_folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2_folder / "tokenizer.json"))
    token_bytes = TokenBytes(tokenizer)
    text = "Hello world! 客单价 😀\n\tnaïve x != y \u2028 end"

    ids = tokenizer.encode(text, add_special_tokens=False).ids

    assert b"".join(map(token_bytes.of, ids)) == text.encode()
    assert token_bytes.of(10813) == b"\xf0\x9f" and token_bytes.of(459) == b" \xe2\x80"
    assert token_bytes.of(2) == b"<|im_end|>"
    assert token_bytes.of(49152) == b""
    assert text_offsets(tokenizer, ids) == [
        len(joined(token_bytes, ids[:i])) for i in range(len(ids))
    ]


def joined(token_bytes: TokenBytes, ids: list[int]) -> str:
    return b"".join(map(token_bytes.of, ids)).decode("utf-8", "ignore")


def test_bytes_of_a_sentencepiece_vocabulary() -> None:
    vocab = {"\u2581the": 0, "<0xE2>": 1, "cat": 2, "é": 3, "<s>": 4}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )

    token_bytes = TokenBytes(tokenizer)

    found = [token_bytes.of(i) for i in range(6)]
    assert found == [b" the", b"\xe2", b"cat", "é".encode(), b"<s>", b""]
