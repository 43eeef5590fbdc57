"""Downloads go on where they broke off and are checked; uploads can be sent again."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
from pathlib import Path

import httpx2
import pytest
from client_stage import breaks, refuses, says

from gristmill.client import APIConnectionError, DownloadCorrupted, NotFoundError
from gristmill.errors import UsageError

CONTENT = bytes(range(256)) * 40
FILE = {"id": "file-1", "object": "file", "bytes": len(CONTENT), "filename": "x.jsonl"}


class Body(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """Comes in pieces, and may end with a connection that breaks."""

    def __init__(self, body: bytes, *, breaks: bool = False) -> None:
        self._body, self._breaks = body, breaks

    def __iter__(self):
        for start in range(0, len(self._body), 1000):
            yield self._body[start : start + 1000]
        if self._breaks:
            raise httpx2.RemoteProtocolError("peer closed connection")

    async def __aiter__(self):
        for piece in self:
            yield piece


def serves(content=CONTENT, *, cut_at=None, digest=None, ranges=True):
    """A server of one file, whose next answer is cut after so many bytes."""
    digest = hashlib.sha256(CONTENT).digest() if digest is None else digest

    def answer(request):
        wanted = request.headers.get("range") if ranges else None
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if start >= len(content):
            return httpx2.Response(416, json={"error": {"message": "behind the end"}})
        rest = content[start:]
        headers = {
            "content-length": str(len(rest)),
            "repr-digest": f"sha-256=:{base64.b64encode(digest).decode()}:",
        }
        if start:
            headers["content-range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        body = Body(rest if cut_at is None else rest[:cut_at], breaks=cut_at is not None)
        return httpx2.Response(206 if start else 200, headers=headers, stream=body)

    return answer


THIRD = len(CONTENT) * 3 // 10


def test_a_download_that_is_cut_at_30_percent_goes_on_there(stage, tmp_path):
    stage.answers = [serves(cut_at=THIRD), serves(cut_at=5000), serves()]

    path = stage.client().files.download("file-1", tmp_path / "out.jsonl")

    assert path.read_bytes() == CONTENT
    assert [request.headers.get("range") for request in stage.requests] == [
        None,
        f"bytes={THIRD}-",
        f"bytes={THIRD + 5000}-",
    ]
    assert list(tmp_path.iterdir()) == [path]


def test_so_does_that_of_an_earlier_process(stage, tmp_path):
    stage.answers = [serves(cut_at=THIRD), breaks]
    with pytest.raises(APIConnectionError):
        stage.client(max_retries=0).files.download("file-1", tmp_path / "out.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl.file-1.part"]

    stage.answers = [serves()]
    path = stage.client().files.download("file-1", tmp_path / "out.jsonl")

    assert path.read_bytes() == CONTENT
    assert stage.requests[-1].headers["range"] == f"bytes={THIRD}-"


def test_a_part_that_is_whole_already_is_checked_once_more(stage, tmp_path):
    (tmp_path / "out.jsonl.file-1.part").write_bytes(CONTENT)
    stage.answers = [serves()]

    assert stage.client().files.download("file-1", tmp_path / "out.jsonl").read_bytes() == CONTENT


def test_a_server_that_knows_no_ranges_sends_all_again(stage, tmp_path):
    stage.answers = [serves(cut_at=THIRD, ranges=False), serves(ranges=False)]

    assert stage.client().files.download("file-1", tmp_path / "x").read_bytes() == CONTENT


def test_a_corrupted_byte_raises_and_nothing_is_kept(stage, tmp_path):
    wrong = bytearray(CONTENT)
    wrong[7000] ^= 1
    stage.answers = [serves(bytes(wrong))]

    with pytest.raises(DownloadCorrupted, match="SHA-256"):
        stage.client().files.download("file-1", tmp_path / "out.jsonl")
    with pytest.raises(DownloadCorrupted):
        stage.client().files.content("file-1")

    assert list(tmp_path.iterdir()) == []


def test_a_body_that_ends_early_in_silence_is_noticed(stage):
    def short(request):
        made = serves()(request)
        return httpx2.Response(200, headers=made.headers, stream=Body(CONTENT[:THIRD]))

    stage.answers = [short, serves()]
    assert stage.client().files.content("file-1").content == CONTENT
    stage.answers = [short, short]
    with pytest.raises(APIConnectionError, match=f"ended after {THIRD} of"):
        stage.client(max_retries=0).files.content("file-1")


def test_tries_that_bring_nothing_come_to_an_end_and_those_that_bring_something_do_not(stage):
    stage.answers = [serves(cut_at=1000)] * 6 + [serves()]
    assert stage.client(max_retries=1).files.content("file-1").content == CONTENT

    stage.requests.clear()
    stage.answers = [serves(cut_at=0)]
    with pytest.raises(APIConnectionError):
        stage.client(max_retries=2).files.content("file-1")
    assert len(stage.requests) == 3


def test_of_a_file_that_is_not_there_nothing_is_left(stage, tmp_path):
    stage.answers = [refuses(404)]

    with pytest.raises(NotFoundError):
        stage.client().files.download("file-1", tmp_path / "x")

    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_said_at_once(stage, tmp_path):
    with pytest.raises(UsageError, match="there is no folder"):
        stage.client().files.download("file-1", tmp_path / "no" / "x")


def test_the_async_client_downloads_in_the_same_way(stage, tmp_path):
    stage.answers = [serves(cut_at=THIRD), serves()]

    async def run():
        async with stage.async_client() as client:
            return await client.files.download("file-1", tmp_path / "x")

    assert asyncio.run(run()).read_bytes() == CONTENT
    assert stage.requests[1].headers["range"] == f"bytes={THIRD}-"


@pytest.mark.parametrize("kind", ["path", "text", "bytes", "file", "named"])
def test_an_upload_is_read_again_for_another_try(stage, tmp_path, kind):
    path = tmp_path / "in.jsonl"
    path.write_bytes(CONTENT)
    files = {
        "path": path,
        "text": str(path),
        "bytes": CONTENT,
        "file": io.BytesIO(CONTENT),
        "named": ("named.jsonl", io.BytesIO(CONTENT)),
    }
    stage.answers = [refuses(503), says(FILE)]

    stage.client().files.create(file=files[kind], purpose="batch", expires_after={"seconds": 3600})

    first, second = stage.requests
    assert first.content == second.content and CONTENT in first.content
    assert int(first.headers["content-length"]) == len(first.content)
    assert b'name="expires_after[seconds]"\r\n\r\n3600\r\n' in first.content
    named = {"named": b"named.jsonl", "path": b"in.jsonl", "text": b"in.jsonl"}
    assert b'filename="' + named.get(kind, b"upload.jsonl") in first.content


def test_the_async_client_uploads_too(stage):
    stage.answers = [breaks, says(FILE)]

    async def run():
        async with stage.async_client() as client:
            return await client.files.create(file=CONTENT)

    assert asyncio.run(run()).id == "file-1" and CONTENT in stage.requests[1].content


@pytest.mark.parametrize(
    ("file", "words"), [("nowhere.jsonl", "no file"), (3, "cannot be uploaded"), (None, "cannot")]
)
def test_what_cannot_be_uploaded_is_said(stage, file, words):
    with pytest.raises(UsageError, match=words):
        stage.client().files.create(file=file)


def test_a_file_that_shrinks_while_it_is_sent_is_an_error(stage, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(CONTENT)
    client = stage.client()
    steps = client.files._calls.create(path, "batch", None, {})
    path.write_bytes(CONTENT[:100])

    with pytest.raises(UsageError, match="now has 100"):
        client._driver.run(steps)


def test_files_are_waited_for_as_in_the_openai_package(stage):
    stage.answers = [says(FILE | {"status": "uploaded"}), says(FILE | {"status": "processed"})]

    assert stage.client().files.wait_for_processing("file-1").status == "processed"
    assert stage.waits == [5.0]


def test_content_is_written_to_a_file(stage, tmp_path: Path):
    stage.answers = [serves()]

    content = stage.client().files.content("file-1")
    content.write_to_file(tmp_path / "x")

    assert content.read() == (tmp_path / "x").read_bytes() == CONTENT
