"""`client.files`: upload, list, retrieve, download, delete."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeAlias, Unpack, cast

from gristmill.client.calls import Caller
from gristmill.client.drive import AsyncDriver, SyncDriver
from gristmill.client.errors import APIError, DownloadCorrupted, WaitTimeout
from gristmill.client.objects import FileDeleted, FileObject, PageContent
from gristmill.client.options import CallOptions
from gristmill.client.pages import AsyncPaginator, SyncPage
from gristmill.client.steps import Sleep, Steps
from gristmill.client.transfer import FileForm, MemorySink, OnBytes, PartSink, download
from gristmill.errors import UsageError

FileContent: TypeAlias = "bytes | IO[bytes] | str | os.PathLike[str]"
#: A path, bytes, an open file, or (name, one of these).
FileTypes: TypeAlias = "FileContent | tuple[str, FileContent]"


class Content:
    """The bytes of a file, checked against the length and hash that the service tells."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    @property
    def text(self) -> str:
        return self.content.decode()

    def read(self) -> bytes:
        return self.content

    def write_to_file(self, file: str | os.PathLike[str]) -> None:
        Path(file).write_bytes(self.content)


@dataclass(frozen=True, slots=True)
class FileCalls:
    """The calls as Steps."""

    caller: Caller

    def create(
        self,
        file: FileTypes,
        purpose: str,
        expires_after: Mapping[str, object] | None,
        call: CallOptions,
        on_bytes: OnBytes | None = None,
    ) -> Steps[FileObject]:
        fields = {"purpose": purpose}
        for name, value in (expires_after or {}).items():
            fields[f"expires_after[{name}]"] = str(value)
        fields |= {name: str(value) for name, value in (call.get("extra_body") or {}).items()}
        filename, open_file, num_bytes = _opened(file)
        form = FileForm(filename, open_file, num_bytes, fields=fields, on_bytes=on_bytes)
        request = self.caller.request(
            "POST", "/files", content=form, content_type=form.content_type, call=call
        )
        return self.caller.one(FileObject, request)

    def retrieve(self, file_id: str, call: CallOptions) -> Steps[FileObject]:
        return self.caller.one(
            FileObject, self.caller.request("GET", f"/files/{checked_id(file_id)}", call=call)
        )

    def list(
        self, query: Mapping[str, object], call: CallOptions
    ) -> Steps[PageContent[FileObject]]:
        return self.caller.page(
            FileObject, self.caller.request("GET", "/files", query=query, call=call)
        )

    def delete(self, file_id: str, call: CallOptions) -> Steps[FileDeleted]:
        return self.caller.one(
            FileDeleted, self.caller.request("DELETE", f"/files/{checked_id(file_id)}", call=call)
        )

    def content(self, file_id: str, call: CallOptions) -> Steps[Content]:
        sink = MemorySink()
        request = self.caller.request(
            "GET",
            f"/files/{checked_id(file_id)}/content",
            accept="application/octet-stream",
            call=call,
        )
        yield from download(request, sink)
        return Content(sink.value())

    def download(
        self,
        file_id: str,
        path: str | os.PathLike[str],
        call: CallOptions,
        on_bytes: OnBytes | None = None,
    ) -> Steps[Path]:
        request = self.caller.request(
            "GET",
            f"/files/{checked_id(file_id)}/content",
            accept="application/octet-stream",
            call=call,
        )
        sink = PartSink(Path(path), file_id)
        try:
            yield from download(request, sink, on_bytes=on_bytes)
        except DownloadCorrupted:
            sink.drop()
            raise
        except APIError as error:
            # Of a file that is not there nothing needs to be kept for another try.
            (sink.close if error.retryable else sink.drop)()
            raise
        except BaseException:
            sink.close()
            raise
        sink.keep()
        return Path(path)

    def wait_for_processing(
        self, file_id: str, poll_interval: float, max_wait_seconds: float, call: CallOptions
    ) -> Steps[FileObject]:
        give_up_at = time.monotonic() + max_wait_seconds
        while True:
            file = yield from self.retrieve(file_id, call)
            if file.status in ("processed", "error", "deleted"):
                return file
            if time.monotonic() > give_up_at:
                raise WaitTimeout(f"{file_id} is still {file.status!r}. Wait again.")
            yield Sleep(poll_interval)


class Files:
    def __init__(self, calls: FileCalls, driver: SyncDriver) -> None:
        self._calls = calls
        self._driver = driver

    def create(
        self,
        *,
        file: FileTypes,
        purpose: str = "batch",
        expires_after: Mapping[str, object] | None = None,
        **options: Unpack[CallOptions],
    ) -> FileObject:
        """Upload a file. It is read as it is sent, and again for another try."""
        return self._driver.run(self._calls.create(file, purpose, expires_after, options))

    def retrieve(self, file_id: str, **options: Unpack[CallOptions]) -> FileObject:
        return self._driver.run(self._calls.retrieve(file_id, options))

    def list(
        self,
        *,
        after: str | None = None,
        limit: int | None = None,
        order: str | None = None,
        purpose: str | None = None,
        **options: Unpack[CallOptions],
    ) -> SyncPage[FileObject]:
        """The newest first, unless `order` is "asc"."""
        query = {"after": after, "limit": limit, "order": order, "purpose": purpose}
        return SyncPage(self._driver.run(self._calls.list(query, options)), self._driver)

    def delete(self, file_id: str, **options: Unpack[CallOptions]) -> FileDeleted:
        return self._driver.run(self._calls.delete(file_id, options))

    def content(self, file_id: str, **options: Unpack[CallOptions]) -> Content:
        """The whole file in memory; for a large one use `download`."""
        return self._driver.run(self._calls.content(file_id, options))

    def download(
        self, file_id: str, path: str | os.PathLike[str], **options: Unpack[CallOptions]
    ) -> Path:
        """Into `path`. It goes on where it broke off, also that of an earlier process, and is
        checked: length and SHA-256. Raises DownloadCorrupted."""
        return self._driver.run(self._calls.download(file_id, path, options))

    def wait_for_processing(
        self,
        file_id: str,
        *,
        poll_interval: float = 5.0,
        max_wait_seconds: float = 1800.0,
        **options: Unpack[CallOptions],
    ) -> FileObject:
        """For users of the openai package; a file is processed as soon as it is uploaded."""
        return self._driver.run(
            self._calls.wait_for_processing(file_id, poll_interval, max_wait_seconds, options)
        )


class AsyncFiles:
    def __init__(self, calls: FileCalls, driver: AsyncDriver) -> None:
        self._calls = calls
        self._driver = driver

    async def create(
        self,
        *,
        file: FileTypes,
        purpose: str = "batch",
        expires_after: Mapping[str, object] | None = None,
        **options: Unpack[CallOptions],
    ) -> FileObject:
        return await self._driver.run(self._calls.create(file, purpose, expires_after, options))

    async def retrieve(self, file_id: str, **options: Unpack[CallOptions]) -> FileObject:
        return await self._driver.run(self._calls.retrieve(file_id, options))

    def list(
        self,
        *,
        after: str | None = None,
        limit: int | None = None,
        order: str | None = None,
        purpose: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncPaginator[FileObject]:
        query = {"after": after, "limit": limit, "order": order, "purpose": purpose}
        return AsyncPaginator(self._calls.list(query, options), self._driver)

    async def delete(self, file_id: str, **options: Unpack[CallOptions]) -> FileDeleted:
        return await self._driver.run(self._calls.delete(file_id, options))

    async def content(self, file_id: str, **options: Unpack[CallOptions]) -> Content:
        return await self._driver.run(self._calls.content(file_id, options))

    async def download(
        self, file_id: str, path: str | os.PathLike[str], **options: Unpack[CallOptions]
    ) -> Path:
        return await self._driver.run(self._calls.download(file_id, path, options))

    async def wait_for_processing(
        self,
        file_id: str,
        *,
        poll_interval: float = 5.0,
        max_wait_seconds: float = 1800.0,
        **options: Unpack[CallOptions],
    ) -> FileObject:
        return await self._driver.run(
            self._calls.wait_for_processing(file_id, poll_interval, max_wait_seconds, options)
        )


def checked_id(text: str) -> str:
    """Raises UsageError for what would make another URL."""
    if not text or not all(c.isalnum() or c in "-_" for c in text) or not text.isascii():
        raise UsageError(f"{text!r} is no id. Give it as the service told it.")
    return text


def _opened(file: FileTypes) -> tuple[str, Callable[[], BinaryIO], int]:
    """The file's name, how it is opened for each try, and how many bytes it has."""
    filename: str | None = None
    if isinstance(file, tuple):
        filename, file = file
    if isinstance(file, (str, os.PathLike)):
        path = Path(file)
        if not path.is_file():
            raise UsageError(f"There is no file {str(path)!r} to upload.")
        return filename or path.name, lambda: path.open("rb"), path.stat().st_size
    if isinstance(file, bytes):
        content = file
        return filename or "upload.jsonl", lambda: io.BytesIO(content), len(content)
    given: Any = file
    if not hasattr(given, "read"):
        raise UsageError(f"A {type(file).__name__} cannot be uploaded. Give a path or bytes.")
    name = filename or Path(str(getattr(given, "name", "upload.jsonl"))).name
    # A copy, since one open file cannot be read by two tries; it goes with its last reader.
    copy = tempfile.NamedTemporaryFile(prefix="gristmill-")  # noqa: SIM115
    shutil.copyfileobj(given, copy)
    copy.flush()
    return name, lambda: cast(BinaryIO, open(copy.name, "rb")), Path(copy.name).stat().st_size
