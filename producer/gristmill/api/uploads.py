"""Takes an upload in: into the Store as it comes, then into the Ledger; the same one only once."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from gristmill.api.context import Api
from gristmill.api.failures import refused
from gristmill.api.file_checks import check_of, check_room_for_estimate
from gristmill.api.multipart import MultipartUpload
from gristmill.api.resent import key_reused, name_of
from gristmill.control.room import check_room_for_bytes
from gristmill.errors import StoreError
from gristmill.ledger import estimates, files, idempotency
from gristmill.ledger.files import File
from gristmill.ledger.idempotency import Made
from gristmill.ledger.ids import new_id
from gristmill.stores.keys import file_key
from gristmill.types import Endpoint

log = logging.getLogger(__name__)

MIN_EXPIRY_S, MAX_EXPIRY_S = 3600, 30 * 24 * 3600
_MAX_FILENAME_CHARS = 255
_KIND = "files"


@dataclass(frozen=True, slots=True)
class _Form:
    """What came with the bytes of a file."""

    purpose: str
    filename: str
    expiry_s: int
    #: A batch for this endpoint is what it is to be checked for at once.
    validate_for: Endpoint | None

    def request_digest(self, sha256: str) -> str:
        """Of the whole request, so that another one with its Idempotency-Key is seen."""
        document = [sha256, self.purpose, self.filename, self.expiry_s, self.validate_for]
        return hashlib.sha256(json.dumps(document).encode()).hexdigest()


def take_upload(
    api: Api, tenant_id: str, upload: MultipartUpload, *, least_bytes: int, key: str | None
) -> File:
    """The file that it becomes, or has become when it was sent before with the same `key`.

    A refused file leaves nothing. Raises ApiError for a form that is wrong, and for a key that
    has made another file; QuotaExceeded, before anything is read when `least_bytes` have no room.
    """
    first = None
    if key is not None:
        with api.ledger.read() as conn:
            first = idempotency.find(conn, tenant_id, name_of(_KIND, key), now=api.now)
    if first is not None:
        return _file_of(api, tenant_id, first, _read_through(api, upload))
    return _store(api, tenant_id, upload, least_bytes=least_bytes, key=key)


def _store(
    api: Api, tenant_id: str, upload: MultipartUpload, *, least_bytes: int, key: str | None
) -> File:
    file_id, made = new_id("file-", api.clock()), list[tuple[File, _Form]]()

    with api.ledger.read() as conn:
        room = check_room_for_bytes(conn, api.settings, tenant_id, least_bytes)

    def checked_chunks() -> Iterator[bytes]:
        num_read, digest = 0, hashlib.sha256()
        for chunk in upload.file_chunks():
            if not num_read:
                _check_early(api, tenant_id, upload)
            num_read += len(chunk)
            digest.update(chunk)
            if room is not None and num_read > room:
                with api.ledger.read() as conn:  # raises, unless room was made meanwhile
                    check_room_for_bytes(conn, api.settings, tenant_id, num_read)
            yield chunk
        # Fields may stand behind the file. What is raised here undoes the write.
        form = _read_form(upload, default_s=api.settings.file_lifetime_s)
        now = api.now
        file = File(
            id=file_id,
            tenant_id=tenant_id,
            purpose=form.purpose,
            filename=form.filename,
            num_bytes=num_read,
            created_at=now,
            expires_at=now + form.expiry_s,
            sha256=digest.hexdigest(),
        )
        with api.ledger.write() as conn:
            if form.validate_for is not None:
                check_room_for_estimate(conn, tenant_id)
            # Held: two uploads at once are counted one after the other.
            check_room_for_bytes(conn, api.settings, tenant_id, num_read, for_update=True)
            # Before its bytes are there, so that the sweep finds them should this process die.
            files.begin_upload(conn, file)
        made.append((file, form))

    api.store.put_stream(file_key(tenant_id, file_id), checked_chunks())
    ((file, form),) = made
    request_digest = form.request_digest(file.sha256 or "")
    first = _complete(api, file, key, Made(request_digest, file_id), form.validate_for)
    if first.object_id != file_id:
        return _file_of(api, tenant_id, first, request_digest)
    log.info("file uploaded tenant=%s file=%s bytes=%d", tenant_id, file_id, file.num_bytes)
    if form.validate_for is not None:
        api.on_submitted()
    return file


def _check_early(api: Api, tenant_id: str, upload: MultipartUpload) -> None:
    """Raises ApiError for what the fields before the file say already, as most clients order them.

    So that nobody sends a large file for nothing.
    """
    form = _read_form(upload, default_s=api.settings.file_lifetime_s, is_whole=False)
    if form.validate_for is not None:
        with api.ledger.read() as conn:
            check_room_for_estimate(conn, tenant_id)


def _complete(
    api: Api, file: File, key: str | None, made: Made, validate_for: Endpoint | None
) -> Made:
    """From now on the file is there, unless one with the same key was faster: then that counts."""
    with api.ledger.write() as conn:
        is_there = files.complete_upload(conn, file)
        first = made
        if is_there and key is not None:
            name = name_of(_KIND, key)
            first = idempotency.keep(conn, file.tenant_id, name, made, now=api.now)
        if first.object_id != file.id:
            files.expire(conn, file.tenant_id, file.id, now=api.now)
        elif is_there and validate_for is not None:
            estimates.add(conn, check_of(file, validate_for))
    if is_there and first.object_id == file.id:
        return first
    # In this order an outage leaves nothing behind: the sweep goes on from here.
    api.store.delete(file_key(file.tenant_id, file.id))
    if not is_there:
        raise StoreError(f"The upload {file.id} took longer than a file is waited for.")
    with api.ledger.write() as conn:
        files.delete(conn, file.tenant_id, file.id, now=api.now)
    return first


def _read_through(api: Api, upload: MultipartUpload) -> str:
    """The request's digest; its bytes are in the Store already, if they are the same."""
    digest = hashlib.sha256()
    for chunk in upload.file_chunks():
        digest.update(chunk)
    form = _read_form(upload, default_s=api.settings.file_lifetime_s)
    return form.request_digest(digest.hexdigest())


def _file_of(api: Api, tenant_id: str, first: Made, request_digest: str) -> File:
    """What an earlier request has made. Raises ApiError unless this one asks for the same."""
    if first.request_digest != request_digest:
        raise key_reused(first.object_id)
    with api.ledger.read() as conn:
        file = files.get(conn, tenant_id, first.object_id, now=api.now)
    if file is None:
        raise key_reused(first.object_id, why="which is not there any more")
    return file


def _read_form(upload: MultipartUpload, *, default_s: int, is_whole: bool = True) -> _Form:
    """Raises ApiError for fields that are wrong, and when it `is_whole` for one that is missing."""
    fields = dict(upload.fields)
    purpose = fields.pop("purpose", None if is_whole else "batch")
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
    validate_for = fields.pop("validate_for", None)
    if validate_for is not None and validate_for not in set(Endpoint):
        raise refused(
            f"validate_for is {validate_for[:80]!a}. Name the endpoint of the batch: "
            f"{', '.join(Endpoint)}.",
            param="validate_for",
        )
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
    endpoint = None if validate_for is None else Endpoint(validate_for)
    return _Form(purpose, _readable_name(upload.filename or ""), int(text), endpoint)


def _readable_name(filename: str) -> str:
    return "".join(c for c in filename if c.isprintable())[-_MAX_FILENAME_CHARS:]
