"""What fails the whole file: every bad line is named, with a code and the way out."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gristmill.errors import LineError
from gristmill.settings import Settings
from gristmill.types import Endpoint

Errors = Callable[..., tuple[LineError, ...]]
MakeLine = Callable[..., str]

CHAT = "/v1/chat/completions"


def changed(line: str, **fields: Any) -> str:
    """`line` with other envelope fields; `...` removes one."""
    request = {**json.loads(line), **fields}
    return json.dumps({name: value for name, value in request.items() if value is not ...})


def found(errors: tuple[LineError, ...]) -> list[tuple[int | None, str, str | None]]:
    return [(error.line, error.code, error.param) for error in errors]


def test_B01_a_repeated_custom_id_fails_the_file_and_names_both_lines(
    errors_of: Errors, chat: MakeLine
) -> None:
    (error,) = errors_of([chat("a", "one"), chat("b", "two"), chat("a", "three")])

    assert (error.line, error.code, error.param) == (3, "duplicate_custom_id", "custom_id")
    assert '"a"' in error.message and "line 1" in error.message


def test_B01_custom_ids_are_unique_across_windows(errors_of: Errors, chat: MakeLine) -> None:
    lines = [chat(f"r{i}") for i in range(5000)]
    lines += [chat("r1"), chat("r4999"), chat("new"), chat("new")]

    errors = errors_of(lines)

    assert [error.line for error in errors] == [5001, 5002, 5004]
    assert "line 5003" in errors[2].message


def test_B01_ids_that_differ_in_case_or_blanks_differ(read: Any, chat: MakeLine) -> None:
    (window,) = read([chat("a"), chat("A"), chat("a "), chat("a\0"), chat("ä")])

    assert window.num_rows == 5


def test_B03_a_byte_order_mark_loses_no_record(read: Any, chat: MakeLine) -> None:
    bom = b"\xef\xbb\xbf"
    half = [bom + f"{chat(f'{n}a')}\n{chat(f'{n}b')}\n".encode() for n in "12"]

    (window,) = read(half[0] + half[1])

    rows = [row for job in window.jobs for row in job.rows]
    assert sorted(row.custom_id for row in rows) == ["1a", "1b", "2a", "2b"]


def test_B04_blank_lines_are_no_requests_and_errors_name_physical_lines(
    errors_of: Errors, read: Any, chat: MakeLine
) -> None:
    first, fourth, last = (chat(name).encode() for name in "abc")
    bad = b'{"custom_id": oops}\n'

    (error,) = errors_of(first + b"\r\n\n \t\n" + fourth + b"\n" + bad + last)
    (window,) = read(first + b"\r\n\n \t\n" + fourth + b"\n" + last)

    assert (error.line, error.code) == (5, "invalid_json_line")
    assert window.num_rows == 3
    assert window.cursor.line_no == 5


def test_B05_every_line_that_is_no_request_is_named(errors_of: Errors, chat: MakeLine) -> None:
    good = chat("g1")
    lines = [
        good,
        "[1,2]",
        '"hi"',
        "null",
        changed(good, custom_id="b1", body="not an object"),
        changed(good, custom_id="b2", method=...),
        changed(good, custom_id="b3", url="/v1/embeddings"),
        chat("b4", "RAW"),
        chat("g2"),
    ]

    errors = errors_of("\n".join(lines).encode().replace(b"RAW", b"\xff"))

    assert found(errors) == [
        (2, "invalid_request", None),
        (3, "invalid_request", None),
        (4, "invalid_request", None),
        (5, "invalid_request", "body"),
        (6, "invalid_request", "method"),
        (7, "url_mismatch", "url"),
        (8, "invalid_json_line", None),
    ]
    assert CHAT in errors[5].message and "/v1/embeddings" in errors[5].message
    assert "0xff" in errors[6].message


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"model":"M","prompt":"hi","temperature":NaN}', "NaN"),
        ('{"model":"M","prompt":"hi","top_p":Infinity}', "Infinity"),
        ('{"model":"M","prompt":"hi","top_p":-Infinity}', "Infinity"),
        ('{"model":"M","prompt":"hi","temperature":1e999}', "1e999"),
        ('{"model":"M","prompt":"hi","prompt":"ho"}', '"prompt" occurs twice'),
        ('{"model":"M","prompt":"hi","logit_bias":{"1":1,"1":2}}', '"1" occurs twice'),
        (r'{"model":"M","prompt":"\ud800"}', r"\ud800"),
        (r'{"model":"M","prompt":"\ud83d\ude00 \udc00"}', r"\udc00"),
        (r'{"model":"M","\udfff":1}', r"\udfff"),
        ('{"model":"M","prompt":"a\tb"}', "control character"),
        ('{"model":"M","prompt":"hi",}', "at character"),
        ('{"model":"M","prompt":"hi"} x', "at character"),
        ('{"model":"M","prompt":' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
        ('{"model":"M","prompt":' + '{"a":' * 100_000 + "1" + "}" * 100_000 + "}", "nested"),
        ('{"model":"M","prompt":"hi","seed":' + "1" * 5000 + "}", "4300 digits"),
    ],
)
def test_B08_what_is_not_strict_json_fails_the_file(
    body: str, said: str, errors_of: Errors, completion: MakeLine
) -> None:
    head = '{"custom_id":"bad","method":"POST","url":"/v1/completions","body":'

    (error,) = errors_of([completion("a"), head + body + "}", completion("b")])

    assert (error.line, error.code) == (2, "invalid_json_line")
    assert said in error.message


def test_escapes_that_are_whole_characters_are_read(read: Any, completion: MakeLine) -> None:
    escaped = completion("a", "RAW").replace("RAW", r"\ud83d\ude00 \\ud800 é é \u0000")
    plain = completion("b", "\U0001f600 \\ud800 é é \0")

    (window,) = read([escaped, plain])

    (job,) = {job.prompt_ids for job in window.jobs}
    assert job


def test_a_repeated_key_of_the_envelope_fails_the_file(errors_of: Errors, chat: MakeLine) -> None:
    (error,) = errors_of([chat("a").replace('{"custom_id"', '{"custom_id": "x", "custom_id"', 1)])

    assert (error.line, error.code) == (1, "invalid_json_line")
    assert '"custom_id" occurs twice' in error.message


@pytest.mark.parametrize("custom_id", [9007199254740993, 1.0, None, True, [], "", "x" * 513])
def test_B08_a_custom_id_that_is_no_short_string_is_refused(
    custom_id: object, errors_of: Errors, chat: MakeLine
) -> None:
    (error,) = errors_of([changed(chat("a"), custom_id=custom_id)])

    assert (error.line, error.code, error.param) == (1, "invalid_request", "custom_id")
    shown = "513" if custom_id == "x" * 513 else json.dumps(custom_id)
    assert shown in error.message


def test_a_custom_id_of_512_characters_is_taken(read: Any, chat: MakeLine) -> None:
    (window,) = read([chat("é" * 512)])

    assert window.jobs[0].rows[0].custom_id == "é" * 512


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"custom_id": ...}, "custom_id"),
        ({"method": "GET"}, "method"),
        ({"method": None}, "method"),
        ({"url": ...}, "url"),
        ({"body": ...}, "body"),
        ({"body": None}, "body"),
        ({"body": []}, "body"),
        ({"id": 1}, "id"),
    ],
)
def test_a_broken_envelope_is_named_by_its_key(
    change: dict[str, Any], param: str, errors_of: Errors, chat: MakeLine
) -> None:
    errors = errors_of([chat("a"), changed(chat("b"), **change), chat("c")])

    assert found(errors) == [(2, "invalid_request", param)]


def test_the_first_line_decides_the_endpoint(
    errors_of: Errors, chat: MakeLine, completion: MakeLine
) -> None:
    errors = errors_of([changed(chat("x"), url="/v1/responses"), completion("a"), chat("b")])

    assert found(errors) == [(1, "url_mismatch", "url"), (3, "url_mismatch", "url")]
    assert "/v1/chat/completions" in errors[0].message
    assert "/v1/completions" in errors[1].message


def test_a_given_endpoint_binds_the_first_line_too(errors_of: Errors, completion: MakeLine) -> None:
    errors = errors_of([completion("a")], endpoint=Endpoint.CHAT)

    assert found(errors) == [(1, "url_mismatch", "url")]


@pytest.mark.parametrize("url", [None, 7, "", "/v1/chat/completions/", "https://x/v1/completions"])
def test_a_url_is_compared_exactly(url: object, errors_of: Errors, completion: MakeLine) -> None:
    assert found(errors_of([changed(completion("a"), url=url)])) == [(1, "url_mismatch", "url")]


def test_B42_an_unknown_model_fails_the_file_and_the_known_names_are_said(
    errors_of: Errors, completion: MakeLine
) -> None:
    errors = errors_of([completion(f"e{n}", model="no-such-model") for n in (1, 2, 3)])

    assert found(errors) == [(n, "model_not_found", "body.model") for n in (1, 2, 3)]
    assert "no-such-model" in errors[0].message and '"M"' in errors[0].message


def test_a_second_model_in_the_file_is_a_mismatch(errors_of: Errors, completion: MakeLine) -> None:
    errors = errors_of([completion("a"), completion("b", model="other")])

    assert found(errors) == [(2, "model_mismatch", "body.model")]


def test_a_model_that_is_missing_or_no_string_concerns_its_row(
    read: Any, completion: MakeLine
) -> None:
    missing = json.loads(completion("b"))
    del missing["body"]["model"]

    (window,) = read([completion("a"), json.dumps(missing), completion("c", model=5)])

    refused = [(one.row.custom_id, one.error.param, one.error.code) for one in window.refused]
    assert refused == [
        ("b", "model", "missing_required_parameter"),
        ("c", "model", "invalid_type"),
    ]


@pytest.mark.parametrize("content", [b"", b"\n\n \r\n", b"\xef\xbb\xbf\n"])
def test_a_file_without_requests_is_refused(content: bytes, errors_of: Errors) -> None:
    assert found(errors_of(content)) == [(None, "empty_batch", None)]


def test_a_file_with_too_many_requests_is_refused(errors_of: Errors, chat: MakeLine) -> None:
    (error,) = errors_of([chat(f"r{i}") for i in range(4)], settings=Settings(max_rows=3))

    assert error.code == "too_many_tasks"
    assert "4" in error.message and "3" in error.message


def test_a_line_that_is_too_long_is_named_and_the_rest_is_read(
    errors_of: Errors, chat: MakeLine
) -> None:
    settings = Settings(max_line_bytes=2000)

    errors = errors_of([chat("a"), chat("b", "x" * 3000), "null"], settings=settings)

    assert found(errors) == [(2, "invalid_json_line", None), (3, "invalid_request", None)]
    assert "2000" in errors[0].message and "GRISTMILL_MAX_LINE_BYTES" in errors[0].message


def test_only_the_first_errors_are_shown_but_all_are_counted(read: Any) -> None:
    from gristmill.errors import BatchInvalid

    with pytest.raises(BatchInvalid) as caught:
        read(["null"] * 5000, settings=Settings(max_errors_shown=2))

    assert [error.line for error in caught.value.errors] == [1, 2]
    assert caught.value.num_errors == 5000


def test_a_bad_line_is_named_once_and_its_id_counts_as_used(
    errors_of: Errors, chat: MakeLine
) -> None:
    lines = [changed(chat("a"), method="GET"), chat("a"), changed(chat("a"), method="GET")]

    assert found(errors_of(lines)) == [
        (1, "invalid_request", "method"),
        (2, "duplicate_custom_id", "custom_id"),
        (3, "invalid_request", "method"),
    ]


def test_chat_needs_a_chat_template_and_says_so_once(
    errors_of: Errors, read: Any, make_model: Any, chat: MakeLine, completion: MakeLine
) -> None:
    model = make_model(template=None)

    (error,) = errors_of([chat("a"), chat("b")], model)

    assert (error.line, error.code, error.param) == (1, "invalid_request", "url")
    assert "chat template" in error.message and "/v1/completions" in error.message
    assert read([completion("a")], model)[0].num_rows == 1
