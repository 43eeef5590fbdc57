"""/v1/files: uploads stream to the Store, downloads stream from it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from typing import Annotated, Literal

import anyio
from anyio import from_thread, to_thread
from fastapi import APIRouter, Header, Query, Request
from sqlalchemy import Connection
from starlette.responses import Response

from gristmill.api.content import content_response, read_range
from gristmill.api.context import Api, FilesReader, FilesWriter, UseApi
from gristmill.api.failures import ApiError, not_found, refused
from gristmill.api.lookup import find, list_page
from gristmill.api.multipart import MultipartUpload, too_large
from gristmill.api.objects import FileDeleted, FileObject, ListObject, file_object
from gristmill.control.room import check_room_for_bytes
from gristmill.errors import KeyNotFound, StoreError
from gristmill.ledger import files
from gristmill.ledger.files import File
from gristmill.ledger.ids import new_id
from gristmill.ledger.paging import Page
from gristmill.stores.keys import file_key

log = logging.getLogger(__name__)
router = APIRouter(prefix="/v1/files", tags=["Files"])

#: Uploads that run at once; each holds a thread for as long as its client takes.
_MAX_UPLOADS = 32
MIN_EXPIRY_S, MAX_EXPIRY_S = 3600, 30 * 24 * 3600
_MAX_FILENAME_CHARS = 255
#: A body is so much longer than its file, at the most.
_FORM_BYTES = 1 << 20
_uploads = anyio.CapacityLimiter(_MAX_UPLOADS)

_FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": ["batch"]},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {
                            "type": "integer",
                            "minimum": MIN_EXPIRY_S,
                            "maximum": MAX_EXPIRY_S,
                        },
                    },
                }
            }
        },
    }
}


@router.post("", openapi_extra=_FORM)
async def create_file(request: Request, api: UseApi, caller: FilesWriter) -> FileObject:
    """Upload a file of requests. It is checked line by line when a batch is made of it."""
    limit = api.settings.max_file_bytes
    length = request.headers.get("content-length", "")
    num_bytes = int(length) if length.isdigit() and len(length) < 19 else 0
    if num_bytes > limit + _FORM_BYTES:
        raise too_large(limit)
    body = request.stream()

    async def next_piece() -> bytes | None:
        return await anext(body, None)

    def pieces() -> Iterator[bytes]:
        while (piece := from_thread.run(next_piece)) is not None:
            yield piece

    upload = MultipartUpload(
        request.headers.get("content-type", ""), pieces(), max_file_bytes=limit
    )
    least_bytes = max(num_bytes - _FORM_BYTES, 0)
    file = await to_thread.run_sync(
        _store, api, caller.tenant_id, upload, least_bytes, limiter=_uploads
    )
    return file_object(file)


def _store(api: Api, tenant_id: str, upload: MultipartUpload, least_bytes: int) -> File:
    """Into the Store as it comes, then into the Ledger. A refused file leaves nothing.

    Raises QuotaExceeded, before anything is read when `least_bytes` have no room already.
    """
    file_id, made = new_id("file-", api.clock()), list[File]()

    with api.ledger.read() as conn:
        room = check_room_for_bytes(conn, api.settings, tenant_id, least_bytes)

    def checked_chunks() -> Iterator[bytes]:
        num_read, digest = 0, hashlib.sha256()
        for chunk in upload.file_chunks():
            num_read += len(chunk)
            digest.update(chunk)
            if room is not None and num_read > room:
                with api.ledger.read() as conn:  # raises, unless room was made meanwhile
                    check_room_for_bytes(conn, api.settings, tenant_id, num_read)
            yield chunk
        # Fields may stand behind the file. What is raised here undoes the write.
        expiry_s = _read_form(upload, default_s=api.settings.file_lifetime_s)
        now = api.now
        file = File(
            id=file_id,
            tenant_id=tenant_id,
            purpose=upload.fields["purpose"],
            filename=_readable_name(upload.filename or ""),
            num_bytes=num_read,
            created_at=now,
            expires_at=now + expiry_s,
            sha256=digest.hexdigest(),
        )
        with api.ledger.write() as conn:
            # Held: two uploads at once are counted one after the other.
            check_room_for_bytes(conn, api.settings, tenant_id, num_read, for_update=True)
            # Before its bytes are there, so that the sweep finds them should this process die.
            files.begin_upload(conn, file)
        made.append(file)

    api.store.put_stream(file_key(tenant_id, file_id), checked_chunks())
    (file,) = made
    with api.ledger.write() as conn:
        is_there = files.complete_upload(conn, file)
    if not is_there:
        api.store.delete(file_key(tenant_id, file_id))
        raise StoreError(f"The upload {file_id} took longer than a file is waited for.")
    log.info("file uploaded tenant=%s file=%s bytes=%d", tenant_id, file_id, file.num_bytes)
    return file


def _read_form(upload: MultipartUpload, *, default_s: int) -> int:
    """Seconds until the file expires. Raises ApiError for fields that are wrong."""
    fields = dict(upload.fields)
    purpose = fields.pop("purpose", None)
    if purpose is None:
        raise refused("purpose: this field is required. Send 'batch'.", param="purpose")
    if purpose != "batch":
        raise refused(f"purpose is {purpose[:80]!a}. Only 'batch' is taken here.", param="purpose")
    if not (upload.filename or "").lower().endswith(".jsonl"):
        raise refused(
            "Invalid file format for Batch API. Must be .jsonl", param="file", code="invalid_file"
        )
    anchor = fields.pop("expires_after[anchor]", "created_at")
    if anchor != "created_at":
        raise refused("The anchor can only be 'created_at'.", param="expires_after[anchor]")
    text = fields.pop("expires_after[seconds]", str(default_s))
    if fields:
        name = next(iter(fields))[:80]
        raise refused(f"{name!a}: this field is not known here. Leave it out.", param=name)
    is_number = text.isascii() and text.isdigit() and len(text) < 12
    if text != str(default_s) and not (is_number and MIN_EXPIRY_S <= int(text) <= MAX_EXPIRY_S):
        raise refused(
            f"A file can expire after {MIN_EXPIRY_S} to {MAX_EXPIRY_S} seconds, and not after "
            f"{text[:80]!a}.",
            param="expires_after[seconds]",
        )
    return int(text)


def _readable_name(filename: str) -> str:
    return "".join(c for c in filename if c.isprintable())[-_MAX_FILENAME_CHARS:]


@router.get("")
def list_files(
    api: UseApi,
    caller: FilesReader,
    after: Annotated[str | None, Query(description="The id of the last file seen.")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Literal["asc", "desc"] = "desc",
    purpose: Annotated[str | None, Query(pattern=r"^[a-z_-]{1,64}$")] = None,
) -> ListObject[FileObject]:
    def read(conn: Connection) -> Page[File] | None:
        return files.list_page(
            conn,
            caller.tenant_id,
            now=api.now,
            limit=limit,
            after_id=after,
            purpose=purpose,
            newest_first=order == "desc",
        )

    return list_page(api, "file", after, read, file_object)


@router.get("/{file_id}")
def retrieve_file(file_id: str, api: UseApi, caller: FilesReader) -> FileObject:
    return file_object(find_file(api, caller.tenant_id, file_id))


@router.get(
    "/{file_id}/content",
    response_class=Response,
    responses={
        200: {"content": {"application/octet-stream": {}}, "description": "All of it"},
        206: {"content": {"application/octet-stream": {}}, "description": "A range of it"},
    },
)
def retrieve_content(
    file_id: str,
    api: UseApi,
    caller: FilesReader,
    wanted: Annotated[str | None, Header(alias="range")] = None,
    if_range: Annotated[str | None, Header()] = None,
) -> Response:
    """The bytes. A file never changes, so a download that broke off goes on with a Range."""
    file = find_file(api, caller.tenant_id, file_id)
    etag = f'"{file.id}"'
    if if_range is not None and if_range != etag:
        wanted = None
    start, num_bytes = read_range(wanted, file.num_bytes)
    try:
        source = api.store.open(file_key(caller.tenant_id, file.id), start=start)
    except KeyNotFound as error:
        raise ApiError(
            500,
            f"The bytes of {file.id} are lost. Its store needs a look.",
            code="internal_error",
            type="server_error",
        ) from error
    return content_response(
        source,
        start=start,
        num_bytes=num_bytes,
        whole_bytes=file.num_bytes,
        etag=etag,
        sha256=file.sha256,
    )


@router.delete("/{file_id}")
def delete_file(file_id: str, api: UseApi, caller: FilesWriter) -> FileDeleted:
    """At once and for good. Batches that were made of it keep their results."""
    find_file(api, caller.tenant_id, file_id)
    with api.ledger.write() as conn:
        # Held, so that no batch is made of it meanwhile.
        file = files.get(conn, caller.tenant_id, file_id, now=api.now, for_update=True)
        if file is None:
            raise not_found("file", file_id, param="file_id")
        if files.is_being_read(conn, caller.tenant_id, file_id):
            raise refused(
                "A batch in 'validating' still reads this file. Wait, or cancel the batch.",
                param="file_id",
                code="file_in_use",
            )
        files.expire(conn, caller.tenant_id, file_id, now=api.now)
    # In this order an outage leaves nothing behind: the sweep goes on from here.
    api.store.delete(file_key(caller.tenant_id, file_id))
    with api.ledger.write() as conn:
        files.delete(conn, caller.tenant_id, file_id, now=api.now)
    log.info("file deleted tenant=%s file=%s", caller.tenant_id, file_id)
    return FileDeleted(id=file_id)


def find_file(api: Api, tenant_id: str, file_id: str, *, param: str = "file_id") -> File:
    """Raises ApiError (404) unless the tenant has this file."""
    return find(
        api,
        "file",
        file_id,
        lambda conn: files.get(conn, tenant_id, file_id, now=api.now),
        param=param,
    )
