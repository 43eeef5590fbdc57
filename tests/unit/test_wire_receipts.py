"""What a receipt is made of comes back as it was: how, where and how long a row was computed."""

from __future__ import annotations

import pytest

from gristmill.embedding import EmbeddingParams, Pooling
from gristmill.types import (
    Endpoint,
    Job,
    JobKind,
    ModelPin,
    Prompt,
    Row,
    RowResult,
    SamplingParams,
    Segment,
    Shard,
    Times,
)
from gristmill.wire import decode_segment, decode_shard, encode_segment, encode_shard


@pytest.mark.parametrize("pooling", Pooling)
@pytest.mark.parametrize(("dimensions", "base64"), [(None, False), (7, True)])
def test_the_parameters_of_an_embedding_come_back(
    pooling: Pooling, dimensions: int | None, base64: bool
) -> None:
    params = EmbeddingParams(pooling, normalize=base64, dimensions=dimensions, base64=base64)
    rows, prompts = (Row(0, "a"),), (Prompt((1, 2)), Prompt((3,)))
    job = Job(rows, prompts, SamplingParams(0), JobKind.EMBED, params)
    pin = ModelPin("m", "r", "t", "float32")
    shard = Shard("acme", "b", "run", 0, Endpoint.EMBEDDINGS, pin, (job,), template_hash="abc")

    assert decode_shard(encode_shard(shard)) == shard


@pytest.mark.parametrize("times", [Times(), Times(0.25, 1 / 3, 7.5), Times(0.25, None, 7.5)])
def test_times_and_versions_come_back(times: Times) -> None:
    result = RowResult(0, (Row(0, "a"),), times=times)
    segment = Segment("a", "b", "c", 0, "d", 0, (result,), engine_version="gristmill 1")

    found = decode_segment(encode_segment(segment))

    assert found.results[0].times == times
    assert found.engine_version == "gristmill 1"
