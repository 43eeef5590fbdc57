"""/v1/files: uploads stream to the Store, downloads stream from it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Literal

from anyio import from_thread, to_thread
from fastapi import APIRouter, Header, Query, Request
from sqlalchemy import Connection
from starlette.responses import Response

from gristmill.api.body_pace import PacedBody
from gristmill.api.content import content_response, read_range
from gristmill.api.context import Api, FilesReader, FilesWriter, UseApi
from gristmill.api.failures import ApiError, not_found, refused
from gristmill.api.file_checks import show, show_all
from gristmill.api.lookup import find, list_page
from gristmill.api.multipart import MultipartUpload, too_large
from gristmill.api.objects import FileDeleted, FileObject, ListObject
from gristmill.api.resent import IdempotencyKey, check_key
from gristmill.api.uploads import MAX_EXPIRY_S, MIN_EXPIRY_S, take_upload
from gristmill.errors import KeyNotFound
from gristmill.ledger import files
from gristmill.ledger.files import File
from gristmill.ledger.paging import Page
from gristmill.stores.keys import file_key
from gristmill.types import Endpoint

log = logging.getLogger(__name__)
router = APIRouter(prefix="/v1/files", tags=["Files"])

#: A body is so much longer than its file, at the most.
_FORM_BYTES = 1 << 20

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
                        "validate_for": {"type": "string", "enum": [*Endpoint]},
                    },
                }
            }
        },
    }
}


@router.post("", openapi_extra=_FORM)
async def create_file(
    request: Request, api: UseApi, caller: FilesWriter, idempotency_key: IdempotencyKey = None
) -> FileObject:
    """Upload a file of requests. It is checked line by line when a batch is made of it.

    With `validate_for`, the endpoint of that batch, it is checked at once: `status` is `uploaded`
    until that is done, and then `processed`, or `error` with the reasons in `status_details`.
    The same upload with the same `Idempotency-Key` gives the same file, for 24 hours.
    """
    check_key(idempotency_key)
    limit = api.settings.max_file_bytes
    length = request.headers.get("content-length", "")
    num_bytes = int(length) if length.isdigit() and len(length) < 19 else 0
    if num_bytes > limit + _FORM_BYTES:
        raise too_large(limit)
    body = PacedBody(request.stream())

    def pieces() -> Iterator[bytes]:
        num_read = 0
        while (piece := from_thread.run(body.next_piece)) is not None:
            num_read += len(piece)
            if num_read > limit + _FORM_BYTES:
                raise too_large(limit)
            yield piece

    upload = MultipartUpload(
        request.headers.get("content-type", ""), pieces(), max_file_bytes=limit
    )
    least_bytes = max(num_bytes - _FORM_BYTES, 0)
    take = partial(
        take_upload, api, caller.tenant_id, upload, least_bytes=least_bytes, key=idempotency_key
    )
    async with api.uploads.slot(caller.tenant_id) as threads:
        return await to_thread.run_sync(lambda: show(api, take()), limiter=threads)


@router.get("")
def list_files(
    api: UseApi,
    caller: FilesReader,
    after: Annotated[str | None, Query(description="The id of the last file seen.")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Literal["asc", "desc"] = "desc",
    purpose: Annotated[str | None, Query(pattern=r"^[a-z_-]{1,64}$")] = None,
) -> ListObject[FileObject]:
    shown: dict[str, FileObject] = {}

    def read(conn: Connection) -> Page[File] | None:
        page = files.list_page(
            conn,
            caller.tenant_id,
            now=api.now,
            limit=limit,
            after_id=after,
            purpose=purpose,
            newest_first=order == "desc",
        )
        shown.update(show_all(conn, page.items if page else [], now=api.now))
        return page

    return list_page(api, "file", after, read, lambda file: shown[file.id])


@router.get("/{file_id}")
def retrieve_file(file_id: str, api: UseApi, caller: FilesReader) -> FileObject:
    return show(api, find_file(api, caller.tenant_id, file_id))


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
