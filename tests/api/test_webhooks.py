"""Webhook endpoints through the API: the official client manages and tests them."""

from __future__ import annotations

import re
from typing import Any
from unittest.mock import patch

import openai
import pytest
from house import House, document, make_lines
from local_run import make_line
from openai import InvalidWebhookSignatureError
from standardwebhooks import Webhook
from webhook_house import ENDS, listen, log_of, post, unwrap
from webhook_house import house as house
from webhook_house import receiver as receiver
from webhook_house import tenant as tenant
from webhook_receiver import Call, Receiver, Reply

from gristmill.api.access import Scope
from gristmill.client.webhooks import verify_webhook


def test_the_official_client_manages_endpoints(
    house: House, receiver: Receiver, tenant: str
) -> None:
    client = house.client(tenant)

    kinds = client.webhooks.event_types.list().data
    made = [listen(client, receiver, ["batch.completed"]) for _ in range(3)]
    first = client.webhooks.retrieve(made[0].id)
    listed = [endpoint.id for endpoint in client.webhooks.list(limit=1)]
    same = client.webhooks.update(first.id, name="n")
    house.clock.ahead_s += 5
    changed = client.webhooks.update(first.id, name="new", event_types=ENDS)  # type: ignore[arg-type]
    gone = client.webhooks.delete(made[1].id)
    after_gone = [endpoint.id for endpoint in client.webhooks.list(after=made[1].id)]
    with pytest.raises(openai.NotFoundError):
        client.webhooks.retrieve(made[1].id)

    assert kinds == [*ENDS, "batch.progress"]
    assert listed == [one.id for one in reversed(made)]
    assert re.fullmatch(r"whsec_[A-Za-z0-9+/=]{44}", made[0].signing_secret)
    assert "signing_secret" not in first.model_extra
    assert (
        first.signing_secret_hint and first.signing_secret_hint[-4:] == made[0].signing_secret[-4:]
    )
    assert (same.updated_at, first.updated_at) == (made[0].updated_at, made[0].updated_at)
    assert changed.updated_at > first.updated_at and changed.event_types == ENDS
    assert (changed.name, changed.url, changed.created_at) == (
        "new",
        receiver.url,
        first.created_at,
    )
    assert gone.deleted and gone.object == "webhook_endpoint.deleted"
    assert after_gone == [made[0].id]


def test_B9_8_B53_deliveries_are_unwrapped_and_wrong_ones_are_not(
    house: House, receiver: Receiver, tenant: str
) -> None:
    client = house.client(tenant)
    secret = listen(client, receiver).signing_secret
    metadata = {"z": "\u00e9\u2028</script>", "a": "1.0", "\u00e9": "\u0000"}
    batch = house.create(make_lines(2), tenant_id=tenant, metadata=metadata)

    (call,) = receiver.wait(1)

    now = house.clock()
    event = unwrap(client, call, secret, now=now)
    assert type(event).__name__ == "BatchCompletedWebhookEvent" and event.data.id == batch.id
    assert client.batches.retrieve(event.data.id).status == "completed"
    assert call.is_signed_with(secret) and call.headers["content-type"] == "application/json"
    assert verify_webhook(call.body, call.headers, [secret], now=now).id == call.id
    if house.clock.ahead_s < 60:  # this library asks the clock of the machine
        assert Webhook(secret).verify(call.body, call.headers)["id"] == call.id
    other = "whsec_" + "b3RoZXI" * 5 + "="
    for wrong, key, at in (
        (Call(call.path, call.headers, call.body.replace(b"completed", b"cancelled")), secret, now),
        (Call(call.path, call.headers | {"webhook-id": "evt_2"}, call.body), secret, now),
        (call, other, now),
        (call, secret, now + 301),
    ):
        with pytest.raises(InvalidWebhookSignatureError):
            unwrap(client, wrong, key, now=at)


def test_a_batch_brings_its_own_url(house: House, receiver: Receiver, tenant: str) -> None:
    client = house.client(tenant)
    file = house.upload(make_lines(2), tenant_id=tenant)
    own_secret = "whsec_" + "c2VjcmV0" * 5

    def create(key: str | None = None, **extra: Any) -> Any:
        return client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/completions",
            completion_window="24h",
            extra_body={"webhook_url": receiver.url, **extra},
            extra_headers={"Idempotency-Key": key} if key else None,
        )

    made, again = create("once"), create("once")
    (call,) = receiver.wait(1)
    second = create(webhook_secret=own_secret)
    receiver.wait(2)

    assert made.id == again.id and made.webhook_url == receiver.url
    assert made.webhook_secret == again.webhook_secret
    event = unwrap(client, call, made.webhook_secret, now=house.clock())
    assert (event.type, event.data.id) == ("batch.completed", made.id)
    assert second.webhook_secret is None and receiver.calls[1].is_signed_with(own_secret)
    assert client.webhooks.list().data == []
    events: Any = client.get(f"/webhook_events?batch_id={made.id}", cast_to=object)
    (delivery,) = post(client, f"/webhook_events/{events['data'][0]['id']}/replay")["deliveries"]
    receiver.wait(3)
    assert receiver.calls[2].id == call.id and receiver.calls[2].body == call.body
    of_batch = client.webhooks.retrieve(delivery["webhook_endpoint_id"])
    assert of_batch.batch_id == made.id  # type: ignore[attr-defined]
    with pytest.raises(openai.BadRequestError) as refusal:
        create("once", webhook_url=f"{receiver.url}/other")
    assert refusal.value.code == "idempotency_key_reused"


def test_a_request_that_is_sent_again_is_the_same_whatever_url_its_batch_got_since(
    house: House, receiver: Receiver, tenant: str
) -> None:
    client = house.client(tenant)
    file = house.upload(make_lines(2), tenant_id=tenant)

    def create(key: str, extra: dict[str, Any]) -> Any:
        return client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/completions",
            completion_window="24h",
            extra_body=extra,
            extra_headers={"Idempotency-Key": key},
        )

    house.pause_ingest()
    plain, url = create("plain", {}), {"webhook_url": receiver.url}
    client.post(f"/batches/{plain.id}/webhook", body=url, cast_to=object)
    with_url = create("with-url", url)
    of_batch: Any = client.post(f"/batches/{with_url.id}/webhook", body=url, cast_to=object)
    client.webhooks.update(of_batch["id"], url=f"{receiver.url}/b")

    assert create("plain", {}).id == plain.id
    again = create("with-url", url)
    assert (again.id, again.webhook_url) == (with_url.id, f"{receiver.url}/b")
    for key, other in (
        ("plain", url),
        ("with-url", {}),
        ("with-url", {"webhook_url": f"{receiver.url}/b"}),
    ):
        with pytest.raises(openai.BadRequestError):
            create(key, other)
    house.resume_ingest()


def test_a_retried_batch_tells_the_url_of_the_first(
    house: House, receiver: Receiver, tenant: str
) -> None:
    extra = {"webhook_url": receiver.url}
    lines = [*make_lines(1), make_line("row-bad", no_such_parameter=1)]
    made: Any = house.create(lines, tenant_id=tenant, extra_body=extra)
    house.wait(made, tenant_id=tenant)

    retried = post(house.client(tenant), f"/batches/{made.id}/retry")
    receiver.wait(2)

    assert [call.event["data"]["id"] for call in receiver.calls] == [made.id, retried["id"]]
    assert all(call.is_signed_with(made.webhook_secret) for call in receiver.calls)


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"webhook_url": "http://10.0.0.1/hook"}, "webhook_url"),
        ({"webhook_url": "https://169.254.169.254/latest"}, "webhook_url"),
        ({"webhook_url": "https://u:p@example.com/"}, "webhook_url"),
        ({"webhook_url": ""}, "webhook_url"),
        ({"webhook_url": 5}, "webhook_url"),
        ({"webhook_url": "https://example.com/", "webhook_secret": "short"}, "webhook_secret"),
        ({"webhook_secret": "whsec_" + "c2VjcmV0" * 5}, "webhook_secret"),
        (
            {"webhook_url": "https://example.com/", "webhook_event_types": ["all"]},
            "webhook_event_types.0",
        ),
    ],
)
def test_a_url_of_a_batch_is_checked_before_there_is_a_batch(
    house: House, tenant: str, extra: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        house.create(make_lines(1), tenant_id=tenant, extra_body=extra)

    assert refusal.value.param == param
    assert house.client(tenant).batches.list().data == []


def test_a_rotation_whose_first_try_was_lost_is_made_whatever_else_was_changed_just_now(
    house: House, receiver: Receiver, tenant: str
) -> None:
    client = house.client(tenant)
    made = listen(client, receiver, ["batch.completed"])
    client.webhooks.update(made.id, name="new")
    again = {"x-stainless-retry-count": "1"}

    rotated = client.webhooks.rotate_secret(made.id, extra_headers=again)
    client.webhooks.update(made.id, name="newer")
    resent = client.webhooks.rotate_secret(made.id, extra_headers=again)

    assert rotated.signing_secret != made.signing_secret
    assert resent.signing_secret == rotated.signing_secret


def test_a_secret_is_rotated_with_and_without_an_overlap(
    house: House, receiver: Receiver, tenant: str
) -> None:
    client = house.client(tenant)
    made = listen(client, receiver)

    kept = client.webhooks.rotate_secret(made.id, keep_old_secret_active_for_24_hours=True)
    client.webhooks.test(made.id, event_type="batch.completed")
    resent = client.webhooks.rotate_secret(
        made.id,
        keep_old_secret_active_for_24_hours=True,
        extra_headers={"x-stainless-retry-count": "1"},
    )
    with house.http(tenant) as http:
        bare = document(http.post(f"/v1/webhook_endpoints/{made.id}/rotate_secret"))
    client.webhooks.test(made.id, event_type="batch.completed")

    during, after = receiver.calls
    assert len({made.signing_secret, kept.signing_secret, bare["signing_secret"]}) == 3
    assert resent.signing_secret == kept.signing_secret
    for secret in (made.signing_secret, kept.signing_secret):
        assert unwrap(client, during, secret, now=house.clock()).type == "batch.completed"
        assert not after.is_signed_with(secret)
    assert after.is_signed_with(bare["signing_secret"])


def test_a_test_event_says_what_the_endpoint_answered(
    house: House, receiver: Receiver, tenant: str
) -> None:
    client = house.client(tenant)
    made = listen(client, receiver)
    receiver.answer = lambda call: Reply(418, body=b"a secret of the receiver")

    result = client.webhooks.test(made.id, event_type="batch.failed")
    receiver.stop()
    with pytest.raises(openai.BadRequestError, match="connection_failed") as refusal:
        client.webhooks.test(made.id, event_type="batch.failed")

    (call,) = receiver.calls
    assert (result.status_code, result.success, result.event_type) == (418, True, "batch.failed")
    assert result.webhook_endpoint_id == made.id
    assert unwrap(client, call, made.signing_secret, now=house.clock()).type == "batch.failed"
    assert refusal.value.code == "webhook_test_failed"
    assert log_of(client, made.id) == []


@pytest.mark.parametrize(
    "body",
    [
        {"name": "n", "url": "http://10.0.0.1/", "event_types": ["batch.failed"]},
        {"name": "n", "url": "https://example.com/", "event_types": ["response.completed"]},
        {"name": "n", "url": "https://example.com/", "event_types": []},
        {"name": "", "url": "https://example.com/", "event_types": ["batch.failed"]},
        {"name": "n", "url": 1, "event_types": ["batch.failed"]},
        {"name": "n", "url": "https://example.com/", "event_types": ["batch.failed"], "x": 1},
        {},
    ],
)
def test_an_endpoint_that_cannot_be_is_refused(house: House, tenant: str, body: Any) -> None:
    with house.http(tenant) as http:
        answer = http.post("/v1/webhook_endpoints", json=body)

    assert answer.status_code == 400 and document(answer)["error"]["param"]


def test_a_request_that_is_sent_again_makes_one_endpoint_and_there_are_not_too_many(
    house: House, receiver: Receiver, tenant: str
) -> None:
    client = house.client(tenant)
    again = {"x-stainless-retry-count": "1"}

    first = listen(client, receiver)
    second = client.webhooks.create(
        name="n",
        url=receiver.url,
        event_types=ENDS,
        extra_headers=again,  # type: ignore[arg-type]
    )
    with (
        patch("gristmill.api.webhooks._MAX_ENDPOINTS", 1),
        pytest.raises(openai.BadRequestError) as refusal,
    ):
        listen(client, receiver)

    assert (first.id, first.signing_secret) == (second.id, second.signing_secret)
    assert refusal.value.code == "too_many_webhook_endpoints"


def test_reading_and_writing_need_their_scopes(house: House, tenant: str) -> None:
    keys = [house.key(tenant, [Scope.WEBHOOKS_READ]), house.key(tenant, [Scope.BATCHES_WRITE])]
    statuses = []
    for key in keys:
        with house.http(headers={"authorization": f"Bearer {key}"}) as http:
            statuses.append(
                [
                    http.get("/v1/webhook_endpoints").status_code,
                    http.get("/v1/webhook_events").status_code,
                    http.post("/v1/webhook_endpoints").status_code,
                    http.post("/v1/webhook_events/evt_1/replay").status_code,
                ]
            )

    assert statuses == [[200, 200, 403, 403], [403] * 4]
