"""Errors of the client: names, attributes and tree as users of the openai package know them.

APIError
├── APIConnectionError             no answer, or only a part of one
│   └── APITimeoutError
├── APIResponseValidationError     an answer that is none of this API
├── APIStatusError                 the service says no
│   ├── BadRequestError 400, AuthenticationError 401, PermissionDeniedError 403, NotFoundError 404,
│   ├── ConflictError 409, UnprocessableEntityError 422, RateLimitError 429
│   └── InternalServerError        500 and above
└── DownloadCorrupted              the bytes that came are not those that were stored
BatchFailed                        the input failed validation, so there are no results
WaitTimeout                        the batch has not ended in the time that was given
MissingApiKey                      no key was given
InvalidWebhookSignatureError       a delivery that nobody with the secret has signed
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gristmill.errors import GristmillError, UsageError

if TYPE_CHECKING:
    from gristmill.client.objects import LineError
    from gristmill.client.steps import Reply, Request

_MAX_SHOWN_CHARS = 500


class APIError(GristmillError):
    """Base of all that a call of the API may raise."""

    def __init__(self, message: str, *, request: Request, body: object = None) -> None:
        super().__init__(message)
        self.message = message
        self.request = request
        #: The `error` object of the answer, or what else there was.
        self.body = body
        self.code = _text_of(body, "code")
        self.param = _text_of(body, "param")
        self.type = _text_of(body, "type")


class APIConnectionError(APIError):
    """No answer came, or its body ended early. Whether the service has acted is not known."""

    retryable = True


class APITimeoutError(APIConnectionError):
    """The service took longer than `timeout`."""

    exit_code = 124


class APIResponseValidationError(APIError):
    """An answer that is none of this API: another service may be listening there."""

    def __init__(self, message: str, *, request: Request, reply: Reply) -> None:
        super().__init__(message, request=request, body=reply.body)
        self.response = reply
        self.status_code = reply.status
        self.request_id = reply.request_id


class APIStatusError(APIError):
    """An answer of 4xx or 5xx."""

    def __init__(self, message: str, *, request: Request, reply: Reply, body: object) -> None:
        super().__init__(message, request=request, body=body)
        self.response = reply
        self.status_code = reply.status
        #: Names this call in the service's log.
        self.request_id = reply.request_id


class BadRequestError(APIStatusError):
    exit_code = 2


class AuthenticationError(APIStatusError):
    exit_code = 5


class PermissionDeniedError(APIStatusError):
    exit_code = 5


class NotFoundError(APIStatusError):
    pass


class ConflictError(APIStatusError):
    retryable = True


class UnprocessableEntityError(APIStatusError):
    pass


class RateLimitError(APIStatusError):
    retryable = True


class InternalServerError(APIStatusError):
    retryable = True


class DownloadCorrupted(APIError):
    """The length or the hash of a download is not the stored one. Nothing of it is kept."""

    retryable = True


class BatchFailed(GristmillError):
    """The input as a whole failed validation. `errors` names the first bad lines."""

    exit_code = 3

    def __init__(self, batch_id: str, errors: Sequence[LineError]) -> None:
        self.batch_id = batch_id
        self.errors = tuple(errors)
        said = [f"line {e.line}: {e.message}" if e.line else e.message for e in self.errors[:3]]
        more = f" ... and {len(errors) - 3} more" if len(errors) > 3 else ""
        super().__init__(
            f"{batch_id} failed validation, so nothing of it was run. {' '.join(said)}{more}"
        )


class WaitTimeout(GristmillError):
    """The time to wait is over. The batch goes on; wait again."""

    exit_code = 124
    retryable = True


class MissingApiKey(UsageError):
    """No API key was given."""

    exit_code = 5


class InvalidWebhookSignatureError(GristmillError):
    """The delivery is not signed with this secret, or it is too old."""


_BY_STATUS: Mapping[int, type[APIStatusError]] = {
    400: BadRequestError,
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    422: UnprocessableEntityError,
    429: RateLimitError,
}


def status_error(request: Request, reply: Reply) -> APIStatusError:
    """The error that an answer of 4xx or 5xx stands for, as specific as its status."""
    kind = _BY_STATUS.get(reply.status)
    if kind is None:
        kind = InternalServerError if reply.status >= 500 else APIStatusError
    body: object
    try:
        document = json.loads(reply.body)
    except ValueError:
        body = reply.body.decode("utf-8", "replace")[:_MAX_SHOWN_CHARS]
    else:
        body = document.get("error", document) if isinstance(document, dict) else document
    said = _text_of(body, "message") or (body if isinstance(body, str) else "") or "no reason given"
    message = f"{said} (status {reply.status}"
    if reply.request_id:
        message += f", request {reply.request_id}"
    return kind(f"{message})", request=request, reply=reply, body=body)


def _text_of(body: object, name: str) -> str | None:
    value = body.get(name) if isinstance(body, dict) else None
    return None if value is None else str(value)
