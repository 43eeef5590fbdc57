"""Both clients have the same names, arguments and defaults."""

from __future__ import annotations

import inspect

import pytest

from gristmill.client import AsyncBatchHandle, AsyncClient, BatchHandle, Client
from gristmill.client.batches import AsyncBatches, Batches
from gristmill.client.estimates import AsyncEstimates, AsyncUsage, Estimates, Usage
from gristmill.client.files import AsyncFiles, Files
from gristmill.client.models import AsyncKeys, AsyncModels, Keys, Models
from gristmill.client.pages import AsyncPage, SyncPage
from gristmill.client.webhook_events import (
    AsyncEventTypes,
    AsyncWebhookEvents,
    EventTypes,
    WebhookEvents,
)
from gristmill.client.webhooks import AsyncWebhooks, Webhooks
from gristmill.client.workers import AsyncWorkers, Workers

TWINS = [
    (Client, AsyncClient),
    (BatchHandle, AsyncBatchHandle),
    (Batches, AsyncBatches),
    (Estimates, AsyncEstimates),
    (EventTypes, AsyncEventTypes),
    (Files, AsyncFiles),
    (Keys, AsyncKeys),
    (Models, AsyncModels),
    (SyncPage, AsyncPage),
    (Usage, AsyncUsage),
    (WebhookEvents, AsyncWebhookEvents),
    (Webhooks, AsyncWebhooks),
    (Workers, AsyncWorkers),
]


def public(kind):
    return {
        name: value
        for name, value in vars(kind).items()
        if not name.startswith("_") and callable(value)
    }


def arguments(function):
    return [
        (one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()
    ]


@pytest.mark.parametrize(("one", "other"), TWINS, ids=lambda kind: kind.__name__)
def test_twins_have_the_same_methods_with_the_same_arguments(one, other):
    assert public(one).keys() == public(other).keys() and public(one)
    for name, method in public(one).items():
        assert arguments(method) == arguments(public(other)[name]), name


def test_twins_have_the_same_resources(stage):
    one, other = vars(stage.client()), vars(stage.async_client())

    assert one.keys() == other.keys()
    for name, resource in one.items():
        if not name.startswith("_"):
            assert (type(resource), type(other[name])) in TWINS
