"""Vectors of a real encoder: those of plain transformers, the same bits in any company."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from test_encoder import make_folder, prompts
from transformers import AutoModel, AutoTokenizer

from gristmill.embedding import EmbeddingParams, Pooling
from gristmill.types import Job, JobKind, Prompt, Row, SamplingParams
from gristmill_worker.engine.base import NOTHING, Finished
from gristmill_worker.engine.encoder_engine import EncoderEngine
from gristmill_worker.models.encoder import LoadedEncoder, load_encoder

TEXTS = [
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "A cheetah is running behind its prey.",
    "Someone in a gorilla costume is playing a set of drums.",
    "Long. " * 70,
    "x",
]
#: What sentence-transformers' own documentation prints for all-MiniLM-L6-v2: how near the text
#: "The weather is lovely today." is to itself and two others.
LOVELY = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
KNOWN_SIMILARITIES = [1.0, 0.6660, 0.1046]


def embed_job(
    token_ids: list[int], pooling: Pooling = Pooling.MEAN, *, normalize: bool = True, **params: Any
) -> Job:
    embedding = EmbeddingParams(pooling, normalize, **params)
    sampling = SamplingParams(0, temperature=0.0)
    return Job((Row(0, "row"),), (Prompt(tuple(token_ids)),), sampling, JobKind.EMBED, embedding)


def run(engine: EncoderEngine, jobs: list[Job]) -> list[Finished]:
    for i, job in enumerate(jobs):
        engine.add(str(i), job)
    ends: dict[str, Finished] = {}
    while engine.num_live:
        ends |= {end.seq_id: end for end in engine.step().finished}
    return [ends[str(i)] for i in range(len(jobs))]


def vectors(engine: EncoderEngine, jobs: list[Job]) -> torch.Tensor:
    return torch.tensor([end.embedding for end in run(engine, jobs)])


@pytest.fixture(scope="session", params=["plain torch", "compiled"])
def minilm(
    request: pytest.FixtureRequest, minilm_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LoadedEncoder, Any, Any]:
    """The Engine's model, the oracle, and their tokenizer."""
    oracle = AutoModel.from_pretrained(minilm_folder, attn_implementation="eager").eval()
    cache_dir = tmp_path_factory.mktemp("cache") if request.param == "compiled" else None
    loaded = load_encoder(minilm_folder, cache_dir=cache_dir)
    return loaded, oracle, AutoTokenizer.from_pretrained(minilm_folder)


@torch.inference_mode()
def plain_vector(oracle: Any, token_ids: list[int]) -> torch.Tensor:
    """As the model's own card computes it: the mean of the states, made one of length 1."""
    mean = oracle(torch.tensor([token_ids])).last_hidden_state[0].mean(0)
    vector: torch.Tensor = mean / mean.norm()
    return vector


@pytest.mark.real_model
def test_vectors_of_a_real_model_are_those_of_plain_transformers(minilm: Any) -> None:
    loaded, oracle, tokenizer = minilm
    ids = tokenizer(TEXTS)["input_ids"]

    found = vectors(EncoderEngine(loaded), [embed_job(one) for one in ids])

    for vector, token_ids in zip(found, ids, strict=True):
        assert (vector - plain_vector(oracle, token_ids)).abs().max() < 1e-5
        assert abs(float(vector.norm()) - 1) < 1e-6


@pytest.mark.real_model
def test_texts_that_mean_the_same_are_near(minilm: Any) -> None:
    loaded, _, tokenizer = minilm

    found = vectors(EncoderEngine(loaded), [embed_job(one) for one in tokenizer(LOVELY).input_ids])

    assert (found @ found[0]).tolist() == pytest.approx(KNOWN_SIMILARITIES, abs=1e-4)


@pytest.mark.real_model
@pytest.mark.parametrize("max_num_batched_tokens", [1, 16, 100, 4096])
def test_B33_a_vector_has_the_same_bits_in_any_company(
    minilm: Any, max_num_batched_tokens: int
) -> None:
    loaded, _, tokenizer = minilm
    jobs = [embed_job(one) for one in tokenizer(TEXTS).input_ids]
    alone = torch.cat([vectors(EncoderEngine(loaded), [job]) for job in jobs])
    engine = EncoderEngine(loaded, max_num_seqs=5, max_num_batched_tokens=max_num_batched_tokens)

    assert torch.equal(vectors(engine, jobs), alone)
    assert torch.equal(vectors(engine, jobs[::-1]).flip(0), alone)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedEncoder, Any]:
    folder = tmp_path_factory.mktemp("bert")
    oracle = make_folder(folder, "Bert")
    return load_encoder(folder), oracle


@pytest.mark.parametrize("pooling", Pooling)
@pytest.mark.parametrize("dimensions", [None, 5])
def test_pooling_cutting_and_normalising(
    tiny: Any, pooling: Pooling, dimensions: int | None
) -> None:
    loaded, oracle = tiny
    jobs = [
        embed_job(one, pooling, normalize=normalize, dimensions=dimensions)
        for one in prompts()
        for normalize in (False, True)
    ]

    found = iter(run(EncoderEngine(loaded), jobs))

    for prompt in prompts():
        states = oracle(torch.tensor([prompt])).last_hidden_state[0]
        pooled = {Pooling.MEAN: states.mean(0), Pooling.LAST: states[-1], Pooling.CLS: states[0]}
        expected = pooled[pooling][:dimensions]
        plain, normalized = torch.tensor(next(found).embedding), torch.tensor(next(found).embedding)
        assert torch.allclose(plain, expected, atol=1e-5)
        assert torch.allclose(normalized, expected / expected.norm(), atol=1e-5)


def test_what_only_the_worker_can_see_ends_its_row_alone(tiny: Any) -> None:
    loaded, _ = tiny
    generating = Job((Row(0, "r"),), (Prompt((3, 4)),), SamplingParams(5))
    jobs = [embed_job([3] * 257), generating, embed_job([]), embed_job([3] * 256)]

    too_long, chat, empty, fits = run(EncoderEngine(loaded), jobs)

    assert too_long.error is not None and too_long.error.code == "context_length_exceeded"
    assert "257" in too_long.error.message and "256" in too_long.error.message
    assert chat.error is not None and "/v1/embeddings" in chat.error.message
    assert empty.error is not None and empty.error.param == "input"
    assert fits.error is None and len(fits.embedding) == 64


def test_a_vector_that_holds_nan_is_that_rows_error_and_no_others(tmp_path: Path) -> None:
    make_folder(tmp_path, "Bert")
    loaded = load_encoder(tmp_path)
    engine = EncoderEngine(loaded)
    table: Any = loaded.model.get_input_embeddings()
    table.weight[7] = math.nan

    bad, good = run(engine, [embed_job([3, 7, 4]), embed_job([3, 4])])

    assert bad.error is not None and bad.error.code == "model_output_invalid"
    assert good.error is None


def test_it_keeps_the_contract_of_an_engine(tiny: Any) -> None:
    loaded, _ = tiny
    times = iter([0.0, 1.0, 3.0, 3.5])
    engine = EncoderEngine(loaded, max_num_seqs=1, clock=lambda: next(times))
    engine.add("a", embed_job([3, 4]))
    engine.add("b", embed_job([3, 4]))

    assert engine.num_live == 2 and engine.generated("b") == NOTHING
    engine.cancel("b")
    engine.cancel("nobody")
    output = engine.step()

    assert [end.seq_id for end in output.finished] == ["a"]
    assert output.num_prefill_tokens == 2 and not output.advanced
    assert (output.finished[0].queue_s, output.finished[0].prefill_s) == (3.0, 0.5)
    assert engine.num_live == 0
    with pytest.raises(KeyError):
        engine.generated("b")
