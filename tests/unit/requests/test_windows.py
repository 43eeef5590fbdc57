"""Windows of the input: bounded in size, taken up again at a cursor, none behind a bad line."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Tokenizer

from gristmill.errors import BatchInvalid, UsageError
from gristmill.requests.input_file import STRETCH_MAX_ROWS
from gristmill.requests.prepare import Cursor, prepare
from gristmill.requests.tokenise import MAX_CHARS_AT_ONCE, Tokeniser
from gristmill.settings import Settings
from gristmill.types import Endpoint

MakeLine = Callable[..., str]


def test_windows_are_bounded_in_rows_and_bytes(read: Any, completion: MakeLine) -> None:
    by_rows = read([completion(f"r{n}", [1]) for n in range(STRETCH_MAX_ROWS * 2 + 1)])
    by_bytes = read([completion(f"r{n}", "\u0001" * 100_000) for n in range(20)])

    assert [window.num_rows for window in by_rows] == [STRETCH_MAX_ROWS, STRETCH_MAX_ROWS, 1]
    assert [window.num_rows for window in by_bytes] == [7, 7, 6]  # \u0001 has six characters


def test_rows_keep_their_token_ids_however_many_texts_are_encoded_at_once(
    read: Any, completion: MakeLine, make_model: Any
) -> None:
    model = make_model(max_model_len=25_000)
    texts = [f"{n} " + "fox " * (20_000 - n) for n in range(8)]
    lines = [completion(f"r{n}", [text, "hi", [1, n]]) for n, text in enumerate(texts)]
    lines.insert(2, completion("too long", "fox " * 30_000))

    (window,) = read(lines, model)

    assert sum(map(len, texts)) > 2 * MAX_CHARS_AT_ONCE
    assert [refused.row.custom_id for refused in window.refused] == ["too long"]
    found = {job.rows[0].custom_id: [p.token_ids for p in job.prompts] for job in window.jobs}
    encode = Tokenizer.from_file(str(model.path / "tokenizer.json")).encode
    assert found == {
        f"r{n}": [tuple(encode(text).ids), tuple(encode("hi").ids), (1, n)]
        for n, text in enumerate(texts)
    }


def test_a_cursor_goes_on_where_a_window_ended(read: Any, completion: MakeLine) -> None:
    lines = [completion(f"r{n}", [n % 300], seed=n) for n in range(STRETCH_MAX_ROWS * 2 + 5)]
    lines.insert(3, " ")
    content = "\r\n".join(lines).encode()
    whole = read(content)

    for done, window in enumerate(whole, 1):
        rest = read(content, start=window.cursor)
        assert rest == whole[done:]

    assert whole[-1].cursor == Cursor(len(content), len(lines), len(lines) - 1)


def test_a_cursor_remembers_ids_endpoint_and_model(
    read: Any, errors_of: Any, completion: MakeLine, chat: MakeLine
) -> None:
    head = [completion(f"r{n}", [1]) for n in range(STRETCH_MAX_ROWS)]
    cursor = read([*head, completion("x")])[0].cursor
    bad = [completion("r5"), chat("new"), completion("y", model="other")]

    errors = errors_of([*head, *bad], start=cursor)

    assert [(error.line, error.code) for error in errors] == [
        (STRETCH_MAX_ROWS + 1, "duplicate_custom_id"),
        (STRETCH_MAX_ROWS + 2, "url_mismatch"),
        (STRETCH_MAX_ROWS + 3, "model_mismatch"),
    ]
    assert "line 6" in errors[0].message


def test_a_cursor_into_another_file_is_refused(read: Any, completion: MakeLine) -> None:
    for content in ([completion("a")], ["null\nnull"], ['{"custom_id": "a", "url": "/v1/x"}\n']):
        with pytest.raises(UsageError, match="not the same file"):
            read(content, start=Cursor(5, 1, 1))


def test_no_window_is_yielded_that_holds_or_follows_a_bad_line(
    make_model: Any, completion: MakeLine
) -> None:
    lines = [completion(f"r{n}", [1]) for n in range(STRETCH_MAX_ROWS * 4)]
    lines[STRETCH_MAX_ROWS * 2 + 1] = "null"
    windows = prepare(
        io.BytesIO("\n".join(lines).encode()),
        model=make_model(),
        settings=Settings(),
        batch_seed="",
    )
    yielded = []

    with pytest.raises(BatchInvalid):
        yielded.extend(window.cursor.row_idx for window in windows)

    assert yielded == [STRETCH_MAX_ROWS]  # the one before the bad line was still being encoded


def test_nothing_is_tokenised_behind_a_bad_line(make_model: Any, completion: MakeLine) -> None:
    class Counting(Tokeniser):
        num_texts = 0

        def encode(self, texts: Any) -> Any:
            self.num_texts += len(texts)
            return super().encode(texts)

    tokeniser = Counting(make_model())
    lines = ["null", *(completion(f"r{n}") for n in range(STRETCH_MAX_ROWS * 2))]
    windows = prepare(
        io.BytesIO("\n".join(lines).encode()),
        model=make_model(),
        settings=Settings(),
        batch_seed="",
        tokeniser=tokeniser,
    )

    with pytest.raises(BatchInvalid):
        next(windows)
    assert tokeniser.num_texts == 0


def test_windows_may_be_left_half_read(make_model: Any, completion: MakeLine) -> None:
    lines = [completion(f"r{n}", [1]) for n in range(STRETCH_MAX_ROWS * 3)]
    windows = prepare(
        io.BytesIO("\n".join(lines).encode()),
        model=make_model(),
        settings=Settings(),
        batch_seed="",
        endpoint=Endpoint.COMPLETIONS,
    )

    assert next(windows).endpoint is Endpoint.COMPLETIONS
    windows.close()  # type: ignore[attr-defined]


def test_reading_requests_loads_no_tokenizer_before_one_is_needed() -> None:
    code = (
        "import sys, gristmill.models, gristmill.requests.check;"
        "print(*{'torch', 'transformers', 'tokenizers', 'huggingface_hub'} & {*sys.modules})"
    )

    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout

    assert output.split() == []
