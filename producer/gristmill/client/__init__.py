"""The client of a Gristmill service: files, batches, models and keys, with the names and errors of
the openai package, and `submit`, which takes whole data sets.

    client = gristmill.Client(base_url="http://127.0.0.1:8000/v1", api_key="gm_…")
    handle = client.submit("reviews.csv", model="smollm2-135m", template="Review: {text}\\nMood:")
    handle.wait()
    for row in handle.results():
        print(row.custom_id, row.text or row.error)
"""

from __future__ import annotations

from gristmill.client.async_client import AsyncClient
from gristmill.client.client import Client
from gristmill.client.errors import (
    APIConnectionError,
    APIError,
    APIResponseValidationError,
    APIStatusError,
    APITimeoutError,
    AuthenticationError,
    BadRequestError,
    BatchFailed,
    ConflictError,
    DownloadCorrupted,
    InternalServerError,
    InvalidWebhookSignatureError,
    MissingApiKey,
    NotFoundError,
    PermissionDeniedError,
    RateLimitError,
    UnprocessableEntityError,
    WaitTimeout,
)
from gristmill.client.handle import AsyncBatchHandle, BatchHandle
from gristmill.client.more_objects import Estimate, UsageLine, WebhookEndpoint, WebhookEvent
from gristmill.client.objects import Batch, FileObject, Model
from gristmill.client.results import Result
from gristmill.client.state import BatchState
from gristmill.client.verify import verify_webhook

__all__ = [
    "APIConnectionError",
    "APIError",
    "APIResponseValidationError",
    "APIStatusError",
    "APITimeoutError",
    "AsyncBatchHandle",
    "AsyncClient",
    "AuthenticationError",
    "BadRequestError",
    "Batch",
    "BatchFailed",
    "BatchHandle",
    "BatchState",
    "Client",
    "ConflictError",
    "DownloadCorrupted",
    "Estimate",
    "FileObject",
    "InternalServerError",
    "InvalidWebhookSignatureError",
    "MissingApiKey",
    "Model",
    "NotFoundError",
    "PermissionDeniedError",
    "RateLimitError",
    "Result",
    "UnprocessableEntityError",
    "UsageLine",
    "WaitTimeout",
    "WebhookEndpoint",
    "WebhookEvent",
    "verify_webhook",
]
