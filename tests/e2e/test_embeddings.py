"""`gristmill run` of /v1/embeddings as a real process: shapes, numbers, kill and resume, replay."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gristmill_process import Gristmill, read_lines


def line(custom_id: str, value: Any, **body: Any) -> dict[str, Any]:
    body = {"model": "tiny", "input": value, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/embeddings", "body": body}


def vectors(row: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
    return [
        np.frombuffer(base64.b64decode(one["embedding"]), "<f4")
        if isinstance(one["embedding"], str)
        else np.array(one["embedding"], np.float32)
        for one in row["response"]["body"]["data"]
    ]


@pytest.fixture
def minilm(tmp_path: Path, minilm_folder: Path) -> Gristmill:
    # The cache of compiled kernels lies beside the model, so not in the package.
    folder = tmp_path / "minilm"
    folder.symlink_to(minilm_folder)
    return Gristmill(tmp_path, folder)


@pytest.mark.real_model
def test_a_real_encoder_answers_a_file(minilm: Gristmill) -> None:
    lovely = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    minilm.write(
        [
            line("list", lovely),
            line("packed", lovely, encoding_format="base64"),
            line("short", lovely, dimensions=64),
            line("one", lovely[0]),
            line("long", "word " * 300),
            line("cut", "word " * 300, truncate_prompt_tokens=-1),
            line("wide", "a", dimensions=385),
        ]
    )

    done = minilm.run()

    assert done.returncode == 4, done.stderr
    rows = {row["custom_id"]: row for row in read_lines(minilm.output)}
    found = np.stack(vectors(rows["list"]))
    assert (found @ found[0]).tolist() == pytest.approx([1.0, 0.6660, 0.1046], abs=1e-4)
    assert np.array_equal(found, np.stack(vectors(rows["packed"])))
    assert np.array_equal(vectors(rows["one"])[0], found[0])
    short = np.stack(vectors(rows["short"]))
    assert np.allclose(short, found[:, :64] / np.linalg.norm(found[:, :64], axis=1)[:, None])
    assert rows["cut"]["response"]["body"]["usage"] == {"prompt_tokens": 256, "total_tokens": 256}
    body = rows["list"]["response"]["body"]
    assert [one["index"] for one in body["data"]] == [0, 1, 2]
    assert body["gristmill"]["params"]["pooling"] == "mean"
    assert body["gristmill"]["attempt_count"] == 1
    errors = {
        row["custom_id"]: row["response"]["body"]["error"] for row in read_lines(minilm.errors)
    }
    assert errors["long"]["code"] == "context_length_exceeded"
    assert errors["wide"]["param"] == "dimensions"


@pytest.mark.real_model
def test_an_encoder_refuses_a_chat_by_name(minilm: Gristmill) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
    chat = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    minilm.write([chat])

    done = minilm.run()

    assert done.returncode == 3
    assert "only makes vectors" in done.stderr and "/v1/embeddings" in done.stderr


def test_vectors_of_a_killed_run_are_those_of_one_that_was_not(gristmill: Gristmill) -> None:
    rows = [
        line(
            f"r{i}", [f"text {i}", "go on " * (1 + i % 30)], pooling=["mean", "last", "cls"][i % 3]
        )
        for i in range(120)
    ]
    gristmill.write(rows)
    assert gristmill.run().returncode == 0
    whole = {row["custom_id"]: vectors(row) for row in read_lines(gristmill.output)}
    gristmill.output.unlink()

    options = ("--flush-interval", "1ms", "--max-num-seqs", "2")
    # At the first Segment: a quick machine stores all that follows in one more.
    with gristmill.held(*options) as process:
        process.kill()
        process.wait()
    done = gristmill.run()

    assert done.returncode == 0, done.stderr
    found = {row["custom_id"]: row for row in read_lines(gristmill.output)}
    assert found.keys() == whole.keys()
    counts = [row["response"]["body"]["gristmill"]["attempt_count"] for row in found.values()]
    assert max(counts) == 2
    for custom_id, row in found.items():
        for one, other in zip(vectors(row), whole[custom_id], strict=True):
            assert np.array_equal(one, other), custom_id


def test_a_row_can_be_replayed(gristmill: Gristmill) -> None:
    gristmill.write([line("a", ["some text", [5, 6, 7]], pooling="mean"), line("b", "more")])
    assert gristmill.run().returncode == 0
    options = ["out.jsonl", "--id", "a", "--input", "in.jsonl", "--json"]

    done = gristmill.call("replay", *options, "--model", str(gristmill.model))

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["is_same"] is True
