"""The lines of the result files, key by key."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from openai.types import Completion
from openai.types.chat import ChatCompletion
from pipeline import PIN, make_job, make_result, read_lines

from gristmill.control.lines import LineWriter
from gristmill.control.receipt import Origin
from gristmill.types import (
    Choice,
    Endpoint,
    FinishReason,
    Job,
    Prompt,
    Row,
    RowError,
    RowResult,
    SamplingParams,
    Times,
    TokenLogprob,
    Usage,
)

RESULT = RowResult(
    0,
    (Row(7, "seven"),),
    Usage(10, 3, 8),
    (Choice((1, 2, 3), "Hello", FinishReason.LENGTH),),
    finished_at=1234,
    ttft_s=0.25,
    itl_s=0.0125,
    times=Times(0.05, 0.2, 0.025),
)
PARAMS = SamplingParams(max_tokens=3, seed=2**63 + 1, logit_bias=((5, -1.5),), stop=("x",))
JOB = Job((Row(7, "seven"),), (Prompt((1,) * 10),), PARAMS)
ORIGIN = Origin("att-1", 2, "gristmill 1.2.3, torch 2", "the-template")


def test_a_chat_answer_has_every_key_of_the_api() -> None:
    line = LineWriter("batch_1", Endpoint.CHAT, PIN).answer(Row(7, "seven"), RESULT, JOB, ORIGIN)
    document = json.loads(line)
    body = document["response"].pop("body")

    assert body.pop("id").startswith("chatcmpl-")
    assert document.pop("id").startswith("batch_req_")
    assert document["response"].pop("request_id").startswith("req_")
    assert document == {"custom_id": "seven", "response": {"status_code": 200}, "error": None}
    assert body == {
        "object": "chat.completion",
        "created": 1234,
        "model": "fake",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 3,
            "total_tokens": 13,
            "prompt_tokens_details": {"cached_tokens": 8},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
        "system_fingerprint": "fp_0123456789ab",
        "gristmill": {
            "attempt": "att-1",
            "attempt_count": 2,
            "model_revision": "0123456789abcdef",
            "tokenizer_hash": "tok",
            "template_hash": "the-template",
            "engine_version": "gristmill 1.2.3, torch 2",
            "dtype": "float32",
            "computed_for_rows": 1,
            "cached_tokens": 8,
            "queue_ms": 50.0,
            "prefill_ms": 200.0,
            "decode_ms": 25.0,
            "ttft_ms": 250.0,
            "itl_ms": 12.5,
            "seed": 2**63 + 1,
            "token_hashes": ["8a6ae15122001229"],
            "repetition": [],
            "params": {
                "max_tokens": 3,
                "temperature": 1.0,
                "top_p": 1.0,
                "top_k": 0,
                "min_p": 0.0,
                "frequency_penalty": 0.0,
                "presence_penalty": 0.0,
                "repetition_penalty": 1.0,
                "logit_bias": {"5": -1.5},
                "min_tokens": 0,
                "stop": ["x"],
                "stop_token_ids": [],
                "include_stop_str_in_output": False,
                "ignore_eos": False,
                "logprobs": None,
                "n": 1,
                "grammar": None,
                "tools": None,
                "echo": False,
                "skip_special_tokens": True,
            },
        },
    }


def test_another_version_of_an_adapter_has_another_fingerprint() -> None:
    pins = [PIN, *(replace(PIN, revision=f"{PIN.revision}+{digit * 32}") for digit in "ab")]

    lines = [
        LineWriter("batch_1", Endpoint.CHAT, pin).answer(Row(7, "seven"), RESULT, JOB, ORIGIN)
        for pin in pins
    ]

    bodies = [json.loads(line)["response"]["body"] for line in lines]
    assert [body["system_fingerprint"] for body in bodies] == [
        "fp_0123456789ab",
        "fp_0123456789ab_aaaaaaaaaaaa",
        "fp_0123456789ab_bbbbbbbbbbbb",
    ]


def test_a_completion_answer_has_its_text() -> None:
    line = LineWriter("batch_1", Endpoint.COMPLETIONS, PIN).answer(
        Row(7, "seven"), RESULT, JOB, ORIGIN
    )
    body = json.loads(line)["response"]["body"]

    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "length"}
    ]


LOGPROBS = Choice(
    (5, 6, 7),
    " 😀",
    FinishReason.STOP,
    (
        TokenLogprob(-0.1234567890123, ((5, -0.1234567890123), (9, -3.0))),
        TokenLogprob(-9.5, ((9, -0.5),)),
        TokenLogprob(-0.0),
    ),
    (0, 1, 2),
    {5: b" \xf0\x9f\x98", 6: b"\x80", 7: b"<end>", 9: b"x"},
)


def body_with_logprobs(endpoint: Endpoint, num_top: int) -> dict[str, Any]:
    result = replace(RESULT, choices=(LOGPROBS,))
    params = replace(PARAMS, logprobs=num_top)
    line = LineWriter("batch_1", endpoint, PIN).answer(
        Row(7, "seven"), result, replace(JOB, params=params), ORIGIN
    )
    [document] = read_lines(line)
    found: dict[str, Any] = document["response"]["body"]
    return found


def logprobs_of(endpoint: Endpoint, num_top: int) -> dict[str, Any]:
    found: dict[str, Any] = body_with_logprobs(endpoint, num_top)["choices"][0]["logprobs"]
    return found


def test_answers_parse_as_those_of_the_openai_client() -> None:
    chat = ChatCompletion.model_validate(body_with_logprobs(Endpoint.CHAT, 2))
    completion = Completion.model_validate(body_with_logprobs(Endpoint.COMPLETIONS, 2))

    logprobs = chat.choices[0].logprobs
    assert logprobs and logprobs.content and logprobs.content[1].bytes == [128]
    assert completion.choices[0].text == chat.choices[0].message.content == LOGPROBS.text
    assert completion.usage == chat.usage and chat.usage and chat.usage.total_tokens == 13


def test_logprobs_of_a_chat_have_true_bytes() -> None:
    found = logprobs_of(Endpoint.CHAT, 2)

    assert found["refusal"] is None
    first, second, third = found["content"]
    assert first == {
        "token": " \ufffd",
        "logprob": -0.1234568,
        "bytes": [32, 240, 159, 152],
        "top_logprobs": [
            {"token": " \ufffd", "logprob": -0.1234568, "bytes": [32, 240, 159, 152]},
            {"token": "x", "logprob": -3.0, "bytes": [120]},
        ],
    }
    assert (second["logprob"], [top["token"] for top in second["top_logprobs"]]) == (-9.5, ["x"])
    assert (str(third["logprob"]), third["top_logprobs"]) == ("0.0", [])
    assert bytes(first["bytes"] + second["bytes"]).decode() == LOGPROBS.text


def test_logprobs_of_a_completion_are_four_lists_of_one_length() -> None:
    found = logprobs_of(Endpoint.COMPLETIONS, 1)

    assert found == {
        "tokens": ["bytes:\\x20\\xf0\\x9f\\x98", "bytes:\\x80", "<end>"],
        "token_logprobs": [-0.1234568, -9.5, 0.0],
        "top_logprobs": [
            {"bytes:\\x20\\xf0\\x9f\\x98": -0.1234568, "x": -3.0},
            {"x": -0.5, "bytes:\\x80": -9.5},
            {"<end>": 0.0},
        ],
        "text_offset": [0, 1, 2],
    }


def test_ids_depend_on_batch_and_row_alone() -> None:
    def ids(batch_id: str, idx: int) -> set[str]:
        job = make_job(idx)
        line = LineWriter(batch_id, Endpoint.CHAT, PIN).answer(
            job.rows[0], make_result(job, 0), job, ORIGIN
        )
        document = json.loads(line)
        response = document["response"]
        found = {document["id"], response["request_id"], response["body"]["id"]}
        assert all(len(an_id.rpartition("_")[2].rpartition("-")[2]) == 24 for an_id in found)
        return found

    assert ids("batch_1", 0) == ids("batch_1", 0)
    assert not ids("batch_1", 0) & ids("batch_1", 1)
    assert not ids("batch_1", 0) & ids("batch_2", 0)


def test_a_line_is_one_line_for_every_reader() -> None:
    text = 'a\nb\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\x7f\x00é😀\\"end'
    row = Row(0, f"id-{text}")
    writer = LineWriter("batch_1", Endpoint.CHAT, PIN)
    failure = writer.failure(row, RowError("server_error", text, status_code=500))

    assert len(failure.decode().splitlines()) == 1
    assert failure.endswith(b"}\n")
    assert "é😀" in failure.decode()
    assert json.loads(failure)["custom_id"] == row.custom_id
    assert json.loads(failure)["response"]["body"]["error"]["message"] == text
