"""Replaying a row: the same to the last digit, or the place where it is not, and clear errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from local_run import Desk, make_line

from gristmill.errors import UsageError
from gristmill.local.differences import differences
from gristmill.local.replay import ReplayFailed, ReplayReport, amended, replay

ROWS = {
    "greedy": {"temperature": 0},
    "sampled": {"seed": 7, "n": 2},
    "derived": {},
    'sp\u00e9cial \u2028 "id"': {},
}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A run of four rows that has ended."""
    desk = Desk(tmp_path)
    desk.write([make_line(custom_id, **body) for custom_id, body in ROWS.items()])
    desk.run()
    return desk


def worker_of(desk: Desk) -> Any:
    """What replay finds installed."""
    return patch("gristmill.local.pipeline.find_worker", lambda: desk.build_worker)


def again(desk: Desk, custom_id: str, **options: Any) -> ReplayReport:
    with worker_of(desk):
        return replay(
            desk.output,
            options.pop("input_path", desk.input),
            custom_id,
            model_name=str(desk.model),
            revision=None,
            settings=desk.settings,
        )


def tamper(desk: Desk, change: Any) -> None:
    lines = [json.loads(line) for line in desk.output.read_text().splitlines()]
    for line in lines:
        change(line["response"]["body"])
    desk.output.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("custom_id", ROWS)
def test_a_row_comes_out_the_same(desk: Desk, custom_id: str) -> None:
    report = again(desk, custom_id)

    assert report.is_same and not report.changed
    assert report.num_compared > 5
    assert report.custom_id == custom_id


def test_another_text_is_shown_from_where_it_differs(desk: Desk) -> None:
    texts: list[str] = []

    def change(body: dict[str, Any]) -> None:
        texts.append(body["choices"][0]["text"])
        body["choices"][0]["text"] = texts[-1][:5] + "!" + texts[-1][6:]

    tamper(desk, change)
    report = again(desk, "greedy")

    [found] = report.differences
    assert (found.path, found.token) == ("choices[0].text[5:]", 0 if texts[0][5] != " " else 1)
    assert (found.then[:1], found.now[:1]) == ("!", texts[0][5])


def test_another_environment_is_told(desk: Desk) -> None:
    tamper(desk, lambda body: body["gristmill"].update(dtype="bfloat16", tokenizer_hash="other"))

    report = again(desk, "greedy")

    assert report.is_same
    assert [(one.what, one.then) for one in report.changed] == [
        ("tokenizer", "other"),
        ("dtype", "bfloat16"),
    ]


def test_tokens_that_read_the_same_are_told_apart(desk: Desk) -> None:
    tamper(desk, lambda body: body["gristmill"].update(token_hashes=["0" * 16]))

    [found] = again(desk, "greedy").differences

    assert (found.path, found.then) == ("token_hashes[0]", "0" * 16)


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda desk: desk.output.unlink(), "no file"),
        (lambda desk: desk.output.write_text(""), "no row"),
        (lambda desk: desk.input.write_text(""), "no row"),
        (lambda desk: tamper(desk, lambda body: body.pop("gristmill")), "no receipt"),
        (lambda desk: tamper(desk, lambda body: body.update(error={"message": "bad"})), "bad"),
        (lambda desk: desk.output.write_text('{"custom_id": "greedy",\n'), "not valid JSON"),
        (lambda desk: desk.input.write_text('{"custom_id": "greedy"}\n'), "no body"),
    ],
)
def test_what_cannot_be_replayed_says_why(desk: Desk, prepare: Any, message: str) -> None:
    prepare(desk)

    with pytest.raises(UsageError, match=message):
        again(desk, "greedy")


def test_a_row_that_is_not_valid_any_more_says_so(desk: Desk, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text(make_line("greedy", temperature=9) + "\n")
    with pytest.raises(ReplayFailed, match="temperature"):
        again(desk, "greedy", input_path=other)

    other.write_text('{"custom_id": "greedy", "body": {"model": "M"}}\n')
    with pytest.raises(ReplayFailed, match="method"):
        again(desk, "greedy", input_path=other)


def test_the_receipt_knows_seed_and_limit_better_than_the_request() -> None:
    receipt = {"seed": 2**64 - 1, "params": {"max_tokens": 9, "logprobs": None}}
    body = {"model": "M", "max_completion_tokens": 500, "temperature": 1}

    chat = amended(body, receipt, endpoint="/v1/chat/completions")
    completion = amended(body, receipt, endpoint="/v1/completions")

    assert chat == {"model": "M", "max_tokens": 9, "temperature": 1, "seed": -1, "logprobs": True}
    assert completion["logprobs"] == 0
    params = {"pooling": "cls", "normalize": False, "dimensions": None, "encoding_format": "float"}
    embedding = amended({"input": "a"}, {"params": params}, endpoint="/v1/embeddings")
    assert embedding == {"input": "a", "pooling": "cls", "normalize": False, "dimensions": None}


def chat_body(*tokens: tuple[str, float]) -> dict[str, Any]:
    content = [
        {"token": t, "logprob": p, "bytes": list(t.encode()), "top_logprobs": []} for t, p in tokens
    ]
    message = {"role": "assistant", "content": "".join(t for t, _ in tokens)}
    return {"choices": [{"index": 0, "message": message, "logprobs": {"content": content}}]}


def test_the_first_token_that_differs_is_named() -> None:
    then = chat_body(("a", -1.0), ("\u00e9t", -2.0), ("c", -3.0))
    now = chat_body(("a", -1.0), ("\u00e9d", -2.0), ("x", -3.5))

    found, _ = differences(then, now)

    assert [(d.path, d.then, d.now, d.token) for d in found] == [
        ("choices[0].message.content[2:]", "tc", "dx", 1),
        ("choices[0].logprobs.content[1].token", "\u00e9t", "\u00e9d", 1),
    ]


def test_a_logprob_alone_may_differ() -> None:
    found, _ = differences(chat_body(("a", -1.0)), chat_body(("a", -1.0000001)))

    [only] = found
    assert (only.path, only.token) == ("choices[0].logprobs.content[0].logprob", 0)


def test_logprobs_that_were_not_asked_for_are_no_difference() -> None:
    then = chat_body(("a", -1.0))
    then["choices"][0]["logprobs"] = None

    assert differences(then, chat_body(("a", -1.0)))[0] == ()


def test_vectors_are_compared_by_their_numbers() -> None:
    def body(embedding: Any) -> dict[str, Any]:
        return {"data": [{"object": "embedding", "index": 0, "embedding": embedding}]}

    assert differences(body("AACAPwAAAEA="), body([1.0, 2.0]))[0] == ()
    [found] = differences(body([1.0, 2.0, 3.0]), body([1.0, 2.5, 3.5]))[0]
    assert (found.path, found.then, found.now) == ("data[0].embedding[1]", 2.0, 2.5)


def test_the_command_says_what_it_found_and_ends_with_it(desk: Desk) -> None:
    from typer.testing import CliRunner

    from gristmill.cli import app

    def call(*options: str) -> Any:
        call = ["replay", str(desk.output), "--input", str(desk.input), "--model", str(desk.model)]
        with worker_of(desk), patch.dict("os.environ", {"GRISTMILL_DEVICE": "cpu"}):
            return CliRunner().invoke(app, [*call, *options])

    same = call("--id", "greedy")
    assert (same.exit_code, same.stdout[:11]) == (0, "same       ")
    tamper(desk, lambda body: body["choices"][0].update(text="another", finish_reason="stop"))
    tamper(desk, lambda body: body["gristmill"].update(engine_version="gristmill 0"))
    other = call("--id", "greedy")
    assert other.exit_code == 6
    assert "differs" in other.stdout and "'another'" in other.stdout
    assert "another engine version" in other.stderr
    document = json.loads(call("--id", "greedy", "--json").stdout)
    assert document["is_same"] is False
    assert document["differences"][0]["path"].startswith("choices[0].text")
    missing = call("--id", "nobody")
    assert (missing.exit_code, "no row" in missing.stderr) == (2, True)
