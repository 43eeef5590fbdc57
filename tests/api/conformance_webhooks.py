"""The part of the conformance list that is about webhooks; see conformance.py."""

from __future__ import annotations

from typing import Any

import openai
from stage import Stage, create, line, refusal, wait


def check_8_webhooks(stage: Stage) -> None:
    client = stage.client()
    asked = {"name": "n", "url": stage.do("receive")["url"], "event_types": ["batch.completed"]}
    made: Any = client.post("/webhook_endpoints", body=asked, cast_to=object)
    old = made["signing_secret"]

    def delivered(secrets: list[str]) -> tuple[str, dict[str, str]]:
        batch = wait(client, create(client, [line("a")], metadata={"k": "\u00e9\u2028"}))
        found = stage.do("delivery", batch_id=batch.id)
        body, headers = found["body"], found["headers"]
        for secret in secrets:
            event = client.webhooks.unwrap(body, headers, secret=secret)
            assert (event.type, event.data.id) == ("batch.completed", batch.id)
            assert event.id == headers["webhook-id"]
        return body, headers

    body, headers = delivered([old])
    for wrong in (
        lambda: client.webhooks.unwrap(body.replace("batch_", "batch-"), headers, secret=old),
        lambda: client.webhooks.unwrap(body, headers, secret=f"whsec_{'A' * 32}"),
        lambda: client.webhooks.verify_signature(body, headers, secret=old, tolerance=-1),
    ):
        refusal(openai.InvalidWebhookSignatureError, wrong)
    path = f"/webhook_endpoints/{made['id']}"
    both = {"keep_old_secret_active_for_24_hours": True}
    new: Any = client.post(f"{path}/rotate_secret", body=both, cast_to=object)
    assert new["signing_secret"] != old
    delivered([old, new["signing_secret"]])
    client.delete(path, cast_to=object)
