"""Files: streamed in and out, capped, and what is refused leaves nothing behind."""

from __future__ import annotations

import io
import itertools
from unittest.mock import patch

import httpx2
import openai
import pytest
from house import House, as_file, document, make_lines

LIMIT = 200_000


def stored_files(house: House) -> list[str]:
    return [key for key in house.data.store.list("t/acme/files/") if ".tmp" not in key]


def form(body: bytes, *, filename: str = "in.jsonl", **fields: str) -> dict[str, object]:
    return {"files": {"file": (filename, body)}, "data": fields}


def test_a_file_is_uploaded_listed_read_and_deleted(house: House) -> None:
    client, body = house.client("files"), as_file(make_lines(3))
    file = house.upload(body, tenant_id="files")

    assert (file.bytes, file.filename, file.purpose) == (len(body), "in.jsonl", "batch")
    assert file.status == "processed" and file.expires_at == file.created_at + 30 * 24 * 3600
    assert client.files.retrieve(file.id) == file
    assert [found.id for found in client.files.list()] == [file.id]
    assert client.files.content(file.id).text == body.decode()
    assert client.files.wait_for_processing(file.id).id == file.id
    assert client.files.delete(file.id).deleted
    for gone in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError) as refusal:
            gone(file.id)
        assert refusal.value.code == "not_found"
    assert list(house.data.store.list("t/files/files/")) == []


def test_files_expire_when_the_caller_says(house: House) -> None:
    file = house.upload(make_lines(1), expires_after={"anchor": "created_at", "seconds": 3600})
    assert file.expires_at == file.created_at + 3600

    house.clock.ahead_s += 3601
    try:
        with pytest.raises(openai.NotFoundError):
            house.client().files.retrieve(file.id)
        with pytest.raises(openai.NotFoundError):
            house.client().batches.create(
                input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
            )
        deadline = 200
        while f"t/acme/files/{file.id}" in stored_files(house) and deadline:
            deadline -= 1
            house.wait_a_turn()
        assert deadline, "the sweep removes it"
    finally:
        house.clock.ahead_s -= 3601


def test_lists_are_read_on_from_a_file_that_was_deleted_meanwhile(house: House) -> None:
    client = house.client("lists")
    made = [house.upload(make_lines(1), tenant_id="lists").id for _ in range(7)]

    first = client.files.list(limit=3)
    client.files.delete(first.data[-1].id)
    rest = [file.id for file in first.get_next_page()]

    assert [file.id for file in first.data] == made[:3:-1]
    assert rest == made[3::-1]
    oldest_first = [file.id for file in client.files.list(order="asc", limit=2)]
    assert oldest_first == [*made[:4], *made[5:]]
    assert [file.id for file in client.files.list(purpose="batch_output")] == []
    with pytest.raises(openai.NotFoundError):
        client.files.list(after="file-unknown")


@pytest.mark.parametrize(
    ("call", "param"),
    [
        (form(b"x"), "purpose"),
        (form(b"x", purpose="fine-tune"), "purpose"),
        (form(b"x", purpose="batch", filename="in.txt"), "file"),
        (form(b"x", purpose="batch", color="red"), "color"),
        (
            form(b"x", purpose="batch", **{"expires_after[seconds]": "12"}),
            "expires_after[seconds]",
        ),
        (form(b"x" * (LIMIT + 1), purpose="batch"), "file"),
        (form(b"x" * (LIMIT + 2_000_000), purpose="batch"), "file"),
        ({"data": {"purpose": "batch"}, "files": {"purpose": (None, "batch")}}, None),
        ({"json": {"purpose": "batch"}}, None),
        (
            {
                "content": b"--x\r\ncontent-disposition: form-data; name=file; filename=a.jsonl"
                b"\r\n\r\nhalf",
                "headers": {"content-type": "multipart/form-data; boundary=x"},
            },
            None,
        ),
        (
            {
                "content": b"--x\r\ncontent-disposition: form-data; name=" + b"f" * 100_000,
                "headers": {"content-type": "multipart/form-data; boundary=x"},
            },
            None,
        ),
    ],
)
def test_an_upload_that_is_refused_leaves_nothing(
    house: House, call: dict[str, object], param: str | None
) -> None:
    before = stored_files(house)

    with house.http() as http:
        headers = {**http.headers, **call.pop("headers", {})}  # type: ignore[dict-item]
        response = http.post("/v1/files", headers=headers, **call)

    assert response.status_code == 400
    assert param is None or document(response)["error"]["param"] == param
    assert stored_files(house) == before


def test_fields_may_stand_behind_the_file(house: House) -> None:
    parts = (
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="\xc3\xa9.jsonl"\r\n\r\n'
        b'{"a":1}\r\n--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n'
        b"batch\r\n--x--\r\n"
    )
    with house.http() as http:
        response = http.post(
            "/v1/files",
            content=(parts[i : i + 1] for i in range(len(parts))),
            headers={"content-type": 'multipart/form-data; boundary="x"'},
        )

    file = document(response)
    assert (response.status_code, file["filename"], file["bytes"]) == (200, "\u00e9.jsonl", 7)
    assert house.client().files.content(file["id"]).content == b'{"a":1}'


def test_B45_downloads_have_an_exact_length_and_go_on_with_a_range(house: House) -> None:
    body = bytes(range(256)) * 700
    file = house.upload(body)
    url, size = f"/v1/files/{file.id}/content", len(body)

    with house.http() as http:

        def get(range_: str | None = None, **headers: str) -> httpx2.Response:
            return http.get(url, headers={"range": range_, **headers} if range_ else headers)

        whole = get()
        assert (whole.status_code, whole.content) == (200, body)
        assert whole.headers["content-length"] == str(size)
        # No browser shows as a page what a caller has written.
        assert whole.headers["content-disposition"] == "attachment"
        assert whole.headers["x-content-type-options"] == "nosniff"
        assert whole.headers["accept-ranges"] == "bytes"
        for asked, start, end in (
            ("bytes=0-0", 0, 1),
            ("bytes=100-199", 100, 200),
            (f"bytes={size - 1}-", size - 1, size),
            ("bytes=-10", size - 10, size),
            (f"bytes=5-{size * 9}", 5, size),
        ):
            part = get(asked)
            assert (part.status_code, part.content) == (206, body[start:end])
            assert part.headers["content-range"] == f"bytes {start}-{end - 1}/{size}"
            assert part.headers["content-length"] == str(end - start)
        for whole_again in ("bytes=0-1,3-4", "lines=1-2", "bytes=9-2", "bytes=-"):
            assert get(whole_again).content == body
        assert get("bytes=0-9", **{"if-range": '"another"'}).status_code == 200
        assert get("bytes=0-9", **{"if-range": whole.headers["etag"]}).status_code == 206
        beyond = get(f"bytes={size}-")
        assert beyond.status_code == 416
        assert beyond.headers["content-range"] == f"bytes */{size}"


def test_a_file_that_a_batch_still_reads_cannot_be_deleted(house: House) -> None:
    client = house.client("reader")
    file = house.upload(make_lines(1), tenant_id="reader")
    house.pause_ingest()
    try:
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        with pytest.raises(openai.BadRequestError) as refusal:
            client.files.delete(file.id)
    finally:
        house.resume_ingest()
    batch = house.wait(batch, tenant_id="reader")

    assert refusal.value.code == "file_in_use"
    assert client.files.delete(file.id).deleted
    assert len(house.lines(batch.output_file_id, tenant_id="reader")) == 1


def test_B68_an_upload_is_never_held_in_memory(house: House) -> None:
    """The parser is fed piece by piece, and what it has read is handed on at once."""
    from gristmill.api.multipart import MultipartUpload

    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
    sent = 0

    def pieces():  # type: ignore[no-untyped-def]
        nonlocal sent
        yield head
        for _ in range(200):
            sent += 65536
            yield b"y" * 65536
        yield b"\r\n--x--\r\n"

    upload = MultipartUpload("multipart/form-data; boundary=x", pieces(), max_file_bytes=1 << 30)
    received = 0
    for chunk in upload.file_chunks():
        received += len(chunk)
        assert sent - received < 2 * 65536

    assert received == 200 * 65536


def test_an_upload_whose_client_goes_away_leaves_nothing(house: House) -> None:
    before = stored_files(house)

    class Gone(Exception):
        pass

    def pieces():  # type: ignore[no-untyped-def]
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\nabc'
        raise Gone

    with house.http() as http, pytest.raises(Gone):
        http.post(
            "/v1/files",
            content=pieces(),
            headers={"content-type": "multipart/form-data; boundary=x"},
        )

    assert house.upload(io.BytesIO(b"{}").getvalue()).bytes == 2
    assert len(stored_files(house)) == len(before) + 1


PART = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\nabc'


def test_what_stands_behind_the_file_has_a_limit_as_well(house: House) -> None:
    before = stored_files(house)
    headers = {"content-type": "multipart/form-data; boundary=x"}
    behind = (b"y" * 1000 for _ in range(300))
    with patch("gristmill.api.files._FORM_BYTES", 1000), house.http() as http:
        answer = http.post(
            "/v1/files",
            content=itertools.chain([PART, b"\r\n--x--\r\n"], behind),
            headers={**http.headers, **headers},
        )

    assert document(answer)["error"]["code"] == "file_too_large"
    assert stored_files(house) == before
