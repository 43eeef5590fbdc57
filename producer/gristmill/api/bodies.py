"""JSON bodies of requests: of bounded size, strict JSON, checked field by field."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import Request
from pydantic import AfterValidator, BaseModel, StrictStr, ValidationError

from gristmill.api.failures import ApiError, refused
from gristmill.types import Endpoint

#: Far more than 16 pairs of metadata can take.
MAX_JSON_BYTES = 256 * 1024
#: Objects and lists in one another; requests have three.
MAX_JSON_DEPTH = 16

Body = TypeVar("Body", bound=BaseModel)


def _check_endpoint(value: str) -> str:
    if value not in set(Endpoint):
        raise ValueError(f"served are {', '.join(Endpoint)}")
    return value


#: What all lines of a file have as their `url`.
ServedEndpoint = Annotated[StrictStr, AfterValidator(_check_endpoint)]


def json_body(
    kind: type[Body], *, may_be_empty: bool = False
) -> Callable[[Request], Coroutine[Any, Any, Body]]:
    """A dependency that reads a body of this kind. Unknown fields are refused, by name."""

    async def read(request: Request) -> Body:
        pieces, num_bytes = [], 0
        async for piece in request.stream():
            num_bytes += len(piece)
            if num_bytes > MAX_JSON_BYTES:
                raise ApiError(
                    413,
                    f"The body has more than {MAX_JSON_BYTES} bytes, which no request needs.",
                    code="request_too_large",
                )
            pieces.append(piece)
        return checked(kind, b"".join(pieces) or (b"{}" if may_be_empty else b""))

    return read


def documented(kind: type[BaseModel]) -> dict[str, Any]:
    """What the OpenAPI document says of such a body; `app.py` adds the schema itself."""
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def checked(kind: type[Body], raw: bytes) -> Body:
    """A body of this kind. Raises ApiError for what is no JSON, or not as it should be."""
    try:
        # Strict: no NaN, no lone surrogates, no bottomless nesting.
        document = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        message = f"The body is not JSON: {str(error)[:200]}. Send one JSON object."
        raise refused(message, param=None, code="invalid_json") from error
    if _is_deep(document):
        message = f"The body is nested more than {MAX_JSON_DEPTH} deep, which no request needs."
        raise refused(message, param=None, code="invalid_json")
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        param = ".".join(map(str, first["loc"])) or None
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = "this field is not known here. Leave it out"
        elif first["type"] == "missing":
            message = "this field is required"
        seen = "" if first["type"] == "missing" else f" (got {str(first['input'])[:80]!a})"
        raise refused(f"{param or 'The body'}: {message}{seen}.", param=param) from error


def _is_deep(document: Any) -> bool:
    level = [document]
    for _ in range(MAX_JSON_DEPTH):
        level = [inner for value in level for inner in _inside(value)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Iterable[Any]:
    """What a list or object holds; scalars have no inside."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
