"""The page of API keys: made (shown once), rotated, revoked. For keys with the scope `admin`."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from gristmill.api.access import DEFAULT_SCOPES, Scope
from gristmill.api.bodies import checked
from gristmill.api.keys import (
    KeyObject,
    KeyRequest,
    RotateRequest,
    create_key,
    list_keys,
    revoke_key,
    rotate_key,
)
from gristmill.dashboard.forms import document_of, number_of
from gristmill.dashboard.visit import Visit, form, page

_ON_A_PAGE = 50
_DAY_S = 86400
#: Days that a new key can live; 0 is for ever.
_LIFETIMES = (
    (0, "does not expire"),
    (7, "7 days"),
    (30, "30 days"),
    (90, "90 days"),
    (365, "1 year"),
)
#: Seconds that a rotated key is good beside the new one.
_OVERLAPS = (
    (0, "at once"),
    (3600, "in 1 hour"),
    (_DAY_S, "in 24 hours"),
    (7 * _DAY_S, "in 7 days"),
)


def show_keys(visit: Visit) -> Response:
    found = list_keys(visit.api, visit.caller, after=visit.asked("after"), limit=_ON_A_PAGE)
    return visit.render(
        "keys.html",
        keys=found.data,
        states={key.id: state_of(key, visit.api.clock()) for key in found.data},
        has_more=found.has_more,
        last_id=found.last_id,
        after=visit.asked("after"),
        # Nobody gives more than he has.
        scopes=[scope for scope in Scope if visit.may(scope)],
        preset=DEFAULT_SCOPES,
        lifetimes=_LIFETIMES,
        overlaps=_OVERLAPS,
    )


def state_of(key: KeyObject, now: float) -> str:
    if key.revoked_at is not None:
        return "revoked"
    if key.expires_at is not None and key.expires_at <= now:
        return "expired"
    return "live"


def create(visit: Visit) -> Response:
    days = number_of(visit.form, "days")
    wanted = {
        "name": visit.field("name"),
        "scopes": visit.form.get("scope", []),
        "expires_at": visit.api.now + days * _DAY_S if days else None,
    }
    made = create_key(visit.api, visit.caller, checked(KeyRequest, document_of(wanted)))
    visit.tell_audit("POST /v1/api_keys", made_id=made.id)
    return visit.render("key_made.html", made=made, replaced=None)


def rotate(visit: Visit) -> Response:
    key_id = visit.request.path_params["key_id"]
    wanted = {"overlap_s": number_of(visit.form, "overlap_s")}
    body = checked(RotateRequest, document_of(wanted))
    made = rotate_key(key_id, visit.api, visit.caller, body)
    visit.tell_audit("POST /v1/api_keys/{key_id}/rotate", made_id=made.id)
    return visit.render("key_made.html", made=made, replaced=key_id)


def revoke(visit: Visit) -> Response:
    revoke_key(visit.request.path_params["key_id"], visit.api, visit.caller)
    visit.tell_audit("DELETE /v1/api_keys/{key_id}")
    return visit.go("/keys", done="revoked")


ROUTES = [
    Route("/keys", page(show_keys, Scope.ADMIN), methods=["GET"]),
    Route("/keys", form(create, Scope.ADMIN), methods=["POST"]),
    Route("/keys/{key_id}/rotate", form(rotate, Scope.ADMIN), methods=["POST"]),
    Route("/keys/{key_id}/revoke", form(revoke, Scope.ADMIN), methods=["POST"]),
]
