"""Forms that a page has sent: of bounded size, from a page of ours, told apart from others'."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.requests import Request

from gristmill.api.failures import ApiError

#: Far more than any form here can have.
_MAX_FORM_BYTES = 32 * 1024
_MAX_FIELDS = 100

Form = dict[str, list[str]]


async def read_form(request: Request) -> Form:
    """All values by field. Raises ApiError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise ApiError(415, "This is no form of the dashboard.", code="unsupported_encoding")
    pieces, num_bytes = [], 0
    async for piece in request.stream():
        num_bytes += len(piece)
        if num_bytes > _MAX_FORM_BYTES:
            raise ApiError(
                413, "The form is longer than any here can be.", code="request_too_large"
            )
        pieces.append(piece)
    try:
        return parse_qs(
            b"".join(pieces).decode(),
            keep_blank_values=True,
            strict_parsing=bool(pieces and any(pieces)),
            max_num_fields=_MAX_FIELDS,
            errors="strict",
        )
    except ValueError as error:
        raise ApiError(400, "The form cannot be read.", code="invalid_form") from error


def field_of(form: Form, name: str) -> str:
    """The value of a field that a form has once; empty where it is left out."""
    values = form.get(name, [])
    return values[0].strip() if values else ""


def check_origin(request: Request) -> None:
    """Raises ApiError (403) for a form that another site has sent, as far as browsers tell.

    All of today tell one of the two. A client without both is none, and has no cookie of anybody.
    """
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    is_foreign = site is not None and site not in ("same-origin", "none")
    if site is None and origin is not None:
        hosts = (request.headers.get("host"), request.headers.get("x-forwarded-host"))
        is_foreign = urlsplit(origin).netloc not in hosts
    if is_foreign:
        raise stale_form()


def stale_form() -> ApiError:
    return ApiError(
        403,
        "This form is not from the page that you see now, so nothing was changed. Go back, load "
        "the page again, and send it from there.",
        code="stale_form",
        type="permission_error",
    )


def number_of(form: Form, name: str) -> int:
    """A whole number; 0 where the field is left out. Raises ApiError."""
    text = field_of(form, name)
    if not re.fullmatch(r"[0-9]{0,12}", text):
        raise ApiError(400, f"{name} is {text[:80]!a}, no whole number.", code="invalid_value")
    return int(text or 0)


def document_of(values: Mapping[str, Any]) -> bytes:
    """As the body of the same request to the API, which checks it."""
    return json.dumps(values).encode()
