"""Signing secrets are sealed in the ledger: whoever copies it can sign nothing."""

from __future__ import annotations

from typing import Any

import pytest
from house import House, make_lines
from pydantic import SecretStr
from sqlalchemy import select, update
from webhook_house import house as house
from webhook_house import listen, post, unwrap, wait_until
from webhook_house import receiver as receiver
from webhook_house import tenant as tenant
from webhook_receiver import Receiver

from gristmill.control.webhook_signing import new_secret
from gristmill.control.webhook_vault import SecretUnreadable, Vault, seal_all
from gristmill.errors import UsageError
from gristmill.ledger.schema_webhooks import webhook_endpoints
from gristmill.settings import Settings

OLD_KEY, NEW_KEY = "the key of last year", "the key of this year"


def held(house: House, tenant: str) -> list[str]:
    """The secrets of a tenant as they lie in the ledger."""
    query = select(webhook_endpoints.c.secret, webhook_endpoints.c.old_secret)
    with house.data.ledger.read() as conn:
        rows = conn.execute(query.where(webhook_endpoints.c.tenant_id == tenant)).all()
    return [text for row in rows for text in row if text]


def write(house: House, tenant: str, text: str) -> None:
    with house.data.ledger.write() as conn:
        conn.execute(
            update(webhook_endpoints)
            .where(webhook_endpoints.c.tenant_id == tenant)
            .values(secret=text)
        )


def test_no_secret_lies_open_in_the_ledger(house: House, receiver: Receiver, tenant: str) -> None:
    client = house.client(tenant)
    made = listen(client, receiver)
    rotated = client.webhooks.rotate_secret(made.id, keep_old_secret_active_for_24_hours=True)
    batch: Any = house.create(
        make_lines(1), tenant_id=tenant, extra_body={"webhook_url": receiver.url}
    )
    receiver.wait(2)

    secrets = {made.signing_secret, rotated.signing_secret, batch.webhook_secret}
    assert len(secrets) == 3 and len(held(house, tenant)) == 3
    assert all(text.startswith("sealed:") for text in held(house, tenant))
    for path in (house.folder / "data").glob("service.sqlite*"):
        assert not any(secret[-20:].encode() in path.read_bytes() for secret in secrets)
    for call in receiver.calls:
        signed_with = [secret for secret in secrets if call.is_signed_with(secret)]
        assert len(signed_with) in (1, 2)  # that of the batch, or both of the endpoint
        unwrap(client, call, signed_with[0], now=house.clock())


def test_a_secret_of_an_earlier_version_signs_and_is_sealed(
    house: House, receiver: Receiver, tenant: str
) -> None:
    client, secret = house.client(tenant), new_secret()
    made = listen(client, receiver)
    write(house, tenant, secret)

    post_test(client, made.id)
    hint = client.webhooks.retrieve(made.id).signing_secret_hint
    vault = house.service.control.vault
    counts = [seal_all(house.data.ledger, vault) for _ in range(2)]
    post_test(client, made.id)

    assert all(call.is_signed_with(secret) for call in receiver.wait(2))
    assert hint and hint.endswith(secret[-4:])
    assert counts == [1, 0] and [vault.open(text) for text in held(house, tenant)] == [secret]


def post_test(client: Any, endpoint_id: str) -> None:
    client.post(
        f"/webhook_endpoints/{endpoint_id}/test",
        cast_to=object,
        body={"event_type": "batch.completed"},
    )


def test_a_key_is_changed_by_naming_both_for_one_start() -> None:
    secret = new_secret()
    old = vault_of(OLD_KEY).seal(secret)
    both = vault_of(f"{NEW_KEY}, {OLD_KEY}")
    new = both.seal(both.open(old))

    assert secret[6:] not in old + new and vault_of(OLD_KEY).seal(secret) != old
    assert both.open(old) == both.open(new) == vault_of(NEW_KEY).open(new) == secret
    assert (both.is_current(old), both.is_current(new)) == (False, True)
    with pytest.raises(SecretUnreadable, match="GRISTMILL_WEBHOOK_SECRET_KEYS") as raised:
        vault_of(NEW_KEY).open(old)
    assert NEW_KEY not in str(raised.value) and old not in str(raised.value)
    with pytest.raises(SecretUnreadable):
        both.open(new[:-4] + "AAAA")


def test_without_a_key_of_its_own_secrets_are_sealed_under_the_pepper() -> None:
    pepper = Settings(key_pepper=SecretStr("0123456789abcdef"))
    text = Vault.of(pepper).seal("whsec_x")

    assert vault_of("0123456789abcdef").open(text) == "whsec_x"
    with pytest.raises(UsageError, match="GRISTMILL_KEY_PEPPER"):
        Vault.of(Settings()).seal("whsec_x")


@pytest.mark.parametrize("keys", ["short", f"{OLD_KEY},short", " , "])
def test_a_key_that_can_be_guessed_is_refused_and_not_shown(keys: str) -> None:
    with pytest.raises(ValueError, match="16 characters") as raised:
        vault_of(keys)

    assert "short" not in str(raised.value)


def vault_of(keys: str) -> Vault:
    return Vault.of(Settings(webhook_secret_keys=SecretStr(keys)))


def test_what_cannot_be_signed_waits_for_the_key_and_delays_nobody_else(
    house: House, receiver: Receiver, tenant: str
) -> None:
    client = house.client(tenant)
    lost = listen(client, receiver)
    write(house, tenant, vault_of(OLD_KEY).seal(lost.signing_secret))
    other = listen(client, receiver)
    house.wait(house.create(make_lines(1), tenant_id=tenant), tenant_id=tenant)
    receiver.wait(1)

    (waiting,) = wait_until(
        lambda: [d for d in deliveries(client, lost.id) if d["next_attempt_at"] > house.clock()]
    )
    hint = client.webhooks.retrieve(lost.id).signing_secret_hint
    client.webhooks.rotate_secret(lost.id)
    post(client, f"/webhook_events/{waiting['event_id']}/replay")
    wait_until(lambda: deliveries(client, lost.id)[0]["status"] == "delivered")

    assert receiver.calls[0].is_signed_with(other.signing_secret)
    assert waiting["status"] == "pending" and hint == "unreadable: rotate it"
    assert client.webhooks.retrieve(lost.id).num_failures == 0


def deliveries(client: Any, endpoint_id: str) -> list[dict[str, Any]]:
    found: Any = client.get(f"/webhook_endpoints/{endpoint_id}/deliveries", cast_to=object)
    listed: list[dict[str, Any]] = found["data"]
    return listed
