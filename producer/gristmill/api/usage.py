"""/v1/usage: the rows that were accepted and their tokens, by day, model and batch."""

from __future__ import annotations

import re
import time
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel

from gristmill.api.context import BatchesReader, UseApi, tenants_of
from gristmill.api.failures import not_found
from gristmill.api.objects import (
    BatchUsage,
    ListObject,
    RequestCounts,
    list_object,
    usage_object,
)
from gristmill.ledger import usage
from gristmill.ledger.usage import DAY_S, UsageKey, UsageLine
from gristmill.prices import PriceTable

router = APIRouter(prefix="/v1/usage", tags=["Usage"])

_MAX_TIME = 253402300799
_DEFAULT_DAYS = 30
#: day, tenant, batch, model; the model is last, since its name may hold anything.
_ID = re.compile(r"([0-9]{0,6})~([A-Za-z0-9_-]{1,64})~([A-Za-z0-9_-]{0,64})~(.{0,500})")


class UsageObject(BaseModel):
    id: str
    object: Literal["usage"] = "usage"
    tenant_id: str
    #: As 2026-11-30, in UTC; null unless grouped by it.
    day: str | None
    model: str
    batch_id: str | None
    request_counts: RequestCounts
    usage: BatchUsage
    #: At today's prices; null for a model without one.
    cost: float | None


@router.get("")
def list_usage(
    api: UseApi,
    caller: BatchesReader,
    start_time: Annotated[
        int | None, Query(ge=0, le=_MAX_TIME, description="From its day on; default: 30 days ago.")
    ] = None,
    end_time: Annotated[
        int | None, Query(ge=0, le=_MAX_TIME, description="Up to its day, with it; default: now.")
    ] = None,
    group_by: Annotated[
        list[Literal["day", "batch"]] | None,
        Query(max_length=2, description="Always by model; by day if nothing is said."),
    ] = None,
    after: Annotated[str | None, Query(description="The id of the last line seen.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    all_tenants: Annotated[bool, Query(description="With the scope `operator`.")] = False,
) -> ListObject[UsageObject]:
    """Each row counts on the day on which its result was accepted, and stays counted when its
    batch is deleted. Rows that never ran count nowhere.
    """
    tenant_id = tenants_of(caller, all_tenants=all_tenants)
    until = api.now if end_time is None else end_time
    since = max(until - _DEFAULT_DAYS * DAY_S, 0) if start_time is None else start_time
    by = set(group_by or ["day"])
    behind = None if after is None else _read_id(after, by)
    with api.ledger.read() as conn:
        lines, has_more = usage.list_lines(
            conn,
            tenant_id,
            since_day=since // DAY_S,
            until_day=until // DAY_S + 1,
            by=by,
            limit=limit,
            after=behind,
        )
    objects = [_object(line, api.prices) for line in lines]
    return list_object(objects, [one.id for one in objects], has_more=has_more)


def _object(line: UsageLine, prices: PriceTable) -> UsageObject:
    key, price = line.key, prices.find(line.key.model)
    day = "" if key.day is None else str(key.day)
    shown = None if key.day is None else time.strftime("%Y-%m-%d", time.gmtime(key.day * DAY_S))
    return UsageObject(
        id="~".join((day, key.tenant_id, key.batch_id or "", key.model)),
        tenant_id=key.tenant_id,
        day=shown,
        model=key.model,
        batch_id=key.batch_id,
        request_counts=RequestCounts(
            total=line.completed + line.failed, completed=line.completed, failed=line.failed
        ),
        usage=usage_object(line.usage),
        cost=None if price is None else float(price.cost(line.usage)),
    )


def _read_id(text: str, by: set[str]) -> UsageKey:
    match = _ID.fullmatch(text)
    is_grouped_so = match and bool(match[1]) is ("day" in by) and bool(match[3]) is ("batch" in by)
    if match is None or not is_grouped_so or "\0" in text:
        raise not_found("line of usage", text, param="after")
    return UsageKey(int(match[1]) if match[1] else None, match[2], match[3] or None, match[4])
