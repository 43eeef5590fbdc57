"""Deliveries are believed when they are signed with the secret, lately, and byte for byte."""

from __future__ import annotations

import json

import openai
import pytest

from gristmill import verify_webhook
from gristmill.client import Client, InvalidWebhookSignatureError
from gristmill.control.webhook_signing import new_secret, signed_headers
from gristmill.errors import UsageError

NOW = 1_800_000_000.0
BODY = json.dumps(
    {"id": "evt_1", "object": "event", "type": "batch.completed", "data": {"id": "batch_1"}}
)


def headers(secret, *, body=BODY, now=NOW):
    return signed_headers("evt_1", body, [secret], now=now)


def test_what_the_service_signs_is_believed():
    secret = new_secret()

    event = verify_webhook(BODY.encode(), headers(secret), secret, now=NOW + 299)

    assert (event.id, event.type, event.data) == ("evt_1", "batch.completed", {"id": "batch_1"})


def test_names_of_headers_may_be_written_in_any_way():
    secret = new_secret()
    named = {name.title(): value for name, value in headers(secret).items()}

    assert verify_webhook(BODY, named, secret, now=NOW).id == "evt_1"


def test_while_a_secret_is_rotated_both_are_believed():
    old, new = new_secret(), new_secret()

    assert verify_webhook(BODY, headers(old), [new, old], now=NOW).id == "evt_1"
    both = signed_headers("evt_1", BODY, [new, old], now=NOW)
    assert verify_webhook(BODY, both, old, now=NOW).id == "evt_1"


@pytest.mark.parametrize(
    ("body", "secret", "now", "words"),
    [
        (BODY + " ", None, NOW, "No signature"),
        (BODY, "whsec_AAAA", NOW, "No signature"),
        (BODY, "plain", NOW, "No signature"),
        (BODY, None, NOW + 301, "301 s old"),
        (BODY, None, NOW - 301, "301 s ahead"),
    ],
)
def test_anything_else_is_refused(body, secret, now, words):
    right = new_secret()

    with pytest.raises(InvalidWebhookSignatureError, match=words):
        verify_webhook(body, headers(right), secret or right, now=now)


@pytest.mark.parametrize("missing", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_a_header_that_is_missing_is_named(missing):
    secret = new_secret()
    named = headers(secret)
    del named[missing]

    with pytest.raises(InvalidWebhookSignatureError, match=missing):
        verify_webhook(BODY, named, secret, now=NOW)


def test_a_secret_that_is_none_is_the_callers_mistake():
    with pytest.raises(UsageError, match="empty"):
        verify_webhook(BODY, headers(new_secret()), "", now=NOW)
    with pytest.raises(UsageError, match="damaged"):
        verify_webhook(BODY, headers(new_secret()), "whsec_!", now=NOW)


def test_the_client_unwraps_as_the_openai_package_does(monkeypatch):
    import time

    secret = new_secret()
    signed = headers(secret, now=time.time())
    theirs = openai.OpenAI(api_key="k").webhooks.unwrap(BODY, signed, secret=secret)
    monkeypatch.setenv("GRISTMILL_WEBHOOK_SECRET", secret)
    client = Client(api_key="k", base_url="http://mill/v1")

    ours = client.webhooks.unwrap(BODY, signed)
    client.webhooks.verify_signature(BODY, signed)

    assert (ours.id, ours.type) == (theirs.id, theirs.type)
