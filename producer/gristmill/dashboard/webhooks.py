"""The pages of webhooks: where a tenant is told, what was sent there, and how to send it again."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from gristmill.api import webhook_deliveries, webhook_events, webhooks
from gristmill.api.access import Scope
from gristmill.api.bodies import checked
from gristmill.api.webhook_access import find_endpoint
from gristmill.dashboard.forms import document_of
from gristmill.dashboard.visit import Visit, form, page, path_of
from gristmill.ledger.webhooks import ENDS, EventType, WebhookEndpoint

_ON_A_PAGE = 25
_PATH = "/v1/webhook_endpoints"


def show_endpoints(visit: Visit) -> Response:
    after = visit.asked("after")
    found = webhooks.list_endpoints(visit.api, visit.caller, after=after, limit=_ON_A_PAGE)
    return visit.render(
        "webhooks.html",
        endpoints=found.data,
        has_more=found.has_more,
        last_id=found.last_id,
        after=after,
        event_types=list(EventType),
        preset=ENDS,
    )


def create(visit: Visit) -> Response:
    wanted = {
        "name": visit.field("name"),
        "url": visit.field("url"),
        "event_types": visit.form.get("event_type", []),
    }
    body = checked(webhooks.EndpointRequest, document_of(wanted))
    made = webhooks.create_endpoint(visit.api, visit.caller, body)
    visit.tell_audit(f"POST {_PATH}", made_id=made.id)
    return visit.render("webhook_made.html", endpoint=made)


def show_endpoint(visit: Visit) -> Response:
    """With its log, the newest delivery first."""
    endpoint = _asked(visit)
    after = visit.asked("after")
    found = webhook_deliveries.list_deliveries(visit.api, endpoint, after, _ON_A_PAGE)
    return visit.render(
        "webhook.html",
        endpoint=webhooks.retrieve_endpoint(visit.api, endpoint),
        deliveries=found.data,
        has_more=found.has_more,
        last_id=found.last_id,
        after=after,
        sample=(endpoint.event_types or (EventType.COMPLETED.value,))[0],
    )


def change(visit: Visit) -> Response:
    """Enables it, or disables it."""
    endpoint = _asked(visit)
    enabled = visit.field("enabled") == "yes"
    body = checked(webhooks.EndpointChange, document_of({"enabled": enabled}))
    webhooks.update_endpoint(visit.api, endpoint, body)
    visit.tell_audit(f"POST {_PATH}/{{webhook_endpoint_id}}")
    done = "endpoint-enabled" if enabled else "endpoint-disabled"
    return visit.go(path_of("webhooks", endpoint.id), done=done)


def delete(visit: Visit) -> Response:
    endpoint = _asked(visit)
    webhooks.delete_endpoint(visit.api, endpoint)
    visit.tell_audit(f"DELETE {_PATH}/{{webhook_endpoint_id}}")
    return visit.go("/webhooks", done="endpoint-deleted")


def send_test(visit: Visit) -> Response:
    endpoint = _asked(visit)
    wanted = {"event_type": visit.field("event_type")}
    body = checked(webhook_deliveries.EndpointTest, document_of(wanted))
    webhook_deliveries.send_test_event(visit.api, endpoint, body)
    visit.tell_audit(f"POST {_PATH}/{{webhook_endpoint_id}}/test")
    return visit.go(path_of("webhooks", endpoint.id), done="tested")


def replay(visit: Visit) -> Response:
    endpoint = _asked(visit)
    event = webhook_events.find_event(
        visit.api, visit.caller.tenant_id, visit.request.path_params["event_id"]
    )
    webhook_events.replay_event(visit.api, event)
    visit.tell_audit("POST /v1/webhook_events/{event_id}/replay")
    return visit.go(path_of("webhooks", endpoint.id), done="replayed")


def _asked(visit: Visit) -> WebhookEndpoint:
    endpoint_id = visit.request.path_params["endpoint_id"]
    return find_endpoint(visit.api, visit.caller.tenant_id, endpoint_id)


_READ, _WRITE = Scope.WEBHOOKS_READ, Scope.WEBHOOKS_WRITE
_ONE = "/webhooks/{endpoint_id}"
ROUTES = [
    Route("/webhooks", page(show_endpoints, _READ), methods=["GET"]),
    Route("/webhooks", form(create, _READ, _WRITE), methods=["POST"]),
    Route(_ONE, page(show_endpoint, _READ), methods=["GET"]),
    Route(_ONE, form(change, _READ, _WRITE), methods=["POST"]),
    Route(f"{_ONE}/delete", form(delete, _READ, _WRITE), methods=["POST"]),
    Route(f"{_ONE}/test", form(send_test, _READ, _WRITE), methods=["POST"]),
    Route(f"{_ONE}/events/{{event_id}}/replay", form(replay, _READ, _WRITE), methods=["POST"]),
]
