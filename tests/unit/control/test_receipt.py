"""Receipts and vectors in the lines of the result files."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import numpy as np
from openai.types import CreateEmbeddingResponse
from pipeline import PIN

from gristmill.control.lines import LineWriter
from gristmill.control.receipt import Origin
from gristmill.embedding import EmbeddingParams, Pooling
from gristmill.types import (
    Choice,
    Endpoint,
    FinishReason,
    Job,
    JobKind,
    Prompt,
    Row,
    RowResult,
    SamplingParams,
    Times,
    Usage,
)

ROW = Row(0, "r")
VECTORS = [
    tuple(float(x) for x in np.random.default_rng(0).normal(size=8).astype(np.float32)),
    (1.0, -0.0, 1e-45, struct.unpack("<f", struct.pack("<f", 0.1))[0], 3e38, -1e-8, 0.5, 2.0),
]


def embedding_body(*, as_base64: bool) -> dict[str, Any]:
    params = EmbeddingParams(Pooling.MEAN, normalize=True, dimensions=8, base64=as_base64)
    prompts = (Prompt((1, 2, 3)), Prompt((4,), num_dropped=6))
    job = Job((ROW,), prompts, SamplingParams(0, temperature=0.0), JobKind.EMBED, params)
    choices = tuple(Choice((), "", FinishReason.LENGTH, embedding=v) for v in VECTORS)
    result = RowResult(0, (ROW,), Usage(4), choices, times=Times(0.1, 0.2))
    line = LineWriter("b", Endpoint.EMBEDDINGS, PIN).answer(ROW, result, job, Origin("att-1"))
    body: dict[str, Any] = json.loads(line)["response"]["body"]
    return body


def test_a_row_of_embeddings_is_the_list_object_of_the_api() -> None:
    body = embedding_body(as_base64=False)
    receipt = body.pop("gristmill")

    assert body.keys() == {"object", "data", "model", "usage"}
    assert (body["object"], body["model"]) == ("list", "fake")
    assert body["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    assert [(one["object"], one["index"]) for one in body["data"]] == [
        ("embedding", 0),
        ("embedding", 1),
    ]
    assert receipt["params"] == {
        "pooling": "mean",
        "normalize": True,
        "dimensions": 8,
        "encoding_format": "float",
    }
    assert (receipt["queue_ms"], receipt["prefill_ms"]) == (100.0, 200.0)
    assert "repetition" not in receipt
    assert receipt["dropped_tokens"] == [0, 6]  # B15: what was left out is said


def test_base64_holds_the_very_numbers_that_float_writes() -> None:
    floats = [one["embedding"] for one in embedding_body(as_base64=False)["data"]]
    packed = [one["embedding"] for one in embedding_body(as_base64=True)["data"]]

    for vector, numbers, text in zip(VECTORS, floats, packed, strict=True):
        decoded = np.frombuffer(base64.b64decode(text), dtype="<f4")
        assert np.array_equal(decoded, np.array(vector, np.float32))
        assert np.array_equal(decoded, np.array(numbers, np.float32))


def test_the_objects_parse_as_those_of_the_openai_client() -> None:
    parsed = CreateEmbeddingResponse.model_validate(embedding_body(as_base64=False))

    assert parsed.data[1].embedding[0] == 1.0
    assert parsed.usage.total_tokens == 4


def test_a_loop_is_flagged_with_its_choice() -> None:
    loop = Choice((9, *[1, 2, 3, 4] * 12), "…", FinishReason.LENGTH)
    fine = Choice(tuple(range(40)), "…", FinishReason.STOP)
    job = Job((ROW,), (Prompt((1,)),), SamplingParams(50, n=2))
    result = RowResult(0, (ROW,), Usage(1, 89), (fine, loop))

    line = LineWriter("b", Endpoint.CHAT, PIN).answer(ROW, result, job, Origin("att-1"))
    receipt = json.loads(line)["response"]["body"]["gristmill"]

    assert receipt["repetition"] == [{"choice": 1, "period": 4, "from_token": 1, "count": 12}]
    assert len(set(receipt["token_hashes"])) == 2
    assert (receipt["template_hash"], receipt["engine_version"]) == (None, None)
    assert receipt["prefill_ms"] is None


def test_what_has_other_tokens_has_another_hash() -> None:
    def token_hash(ids: tuple[int, ...]) -> str:
        job = Job((ROW,), (Prompt((1,)),), SamplingParams(50))
        result = RowResult(0, (ROW,), choices=(Choice(ids, "same", FinishReason.STOP),))
        line = LineWriter("b", Endpoint.CHAT, PIN).answer(ROW, result, job, Origin("a"))
        found: str = json.loads(line)["response"]["body"]["gristmill"]["token_hashes"][0]
        return found

    assert token_hash((1, 23)) == token_hash((1, 23))
    assert len({token_hash((1, 23)), token_hash((12, 3)), token_hash(())}) == 3
