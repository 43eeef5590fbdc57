"""Queries about the size classes of a batch: few rows, whatever the number of its Shards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from sqlalchemy import Connection, exists, func, insert, select, update

from gristmill.ledger.schema import batches, shards
from gristmill.ledger.schema_dispatch import size_classes
from gristmill.ledger.status import BatchStatus
from gristmill.types import ModelPin

#: Classes that are looked at in one go.
_MAX_CLASSES = 10_000
#: As ledger/shards.py has it.
_WAITING, _DONE = "waiting", "done"

_has_waiting = exists().where(
    shards.c.batch_id == size_classes.c.batch_id,
    shards.c.size_class == size_classes.c.size_class,
    shards.c.state == _WAITING,
)


class _Sized(Protocol):
    @property
    def size_class(self) -> str: ...
    @property
    def max_row_tokens(self) -> int: ...
    @property
    def least_row_tokens(self) -> int: ...


@dataclass(frozen=True, slots=True)
class SizeClass:
    """Shards of one batch that are alike.

    `min_row_tokens` is of the Shard whose longest row is the shortest, the others of those with the
    longest rows.
    """

    batch_id: str
    size_class: str
    tenant_id: str
    min_row_tokens: int
    max_row_tokens: int
    least_row_tokens: int


def add(conn: Connection, tenant_id: str, batch_id: str, new: Iterable[_Sized]) -> None:
    """Count new Shards in, in a transaction that has changed the batch."""
    by_class: dict[str, list[_Sized]] = {}
    for shard in new:
        by_class.setdefault(shard.size_class, []).append(shard)
    known = {one.size_class: one for one in list_of_batch(conn, tenant_id, batch_id)}
    for name, some in by_class.items():
        rows = [shard.max_row_tokens for shard in some]
        least = max(shard.least_row_tokens for shard in some)
        found = known.get(name)
        if found is None:
            one = SizeClass(batch_id, name, tenant_id, min(rows), max(rows), least)
            conn.execute(insert(size_classes).values(**asdict(one)))
            continue
        one = replace(
            found,
            min_row_tokens=min(found.min_row_tokens, *rows),
            max_row_tokens=max(found.max_row_tokens, *rows),
            least_row_tokens=max(found.least_row_tokens, least),
        )
        if one != found:
            _replace(conn, one)


def list_of_batch(conn: Connection, tenant_id: str, batch_id: str) -> list[SizeClass]:
    """By name."""
    query = (
        select(size_classes)
        .where(size_classes.c.tenant_id == tenant_id, size_classes.c.batch_id == batch_id)
        .order_by(size_classes.c.size_class)
    )
    return [SizeClass(**row) for row in conn.execute(query).mappings()]


def list_waiting(conn: Connection, *, since: int | None = None) -> list[tuple[SizeClass, ModelPin]]:
    """Classes with Shards that wait, of all tenants' running batches, and the model of each.

    With `since` only of batches that began to run by then.
    """
    of = batches.c
    query = (
        select(size_classes, of.model_name, of.model_revision, of.tokenizer_hash, of.dtype)
        .join(batches, of.id == size_classes.c.batch_id)
        .where(of.status == BatchStatus.IN_PROGRESS, of.freeze_reason.is_(None), _has_waiting)
        .order_by(size_classes.c.batch_id, size_classes.c.size_class)
        .limit(_MAX_CLASSES)
    )
    if since is not None:
        query = query.where(of.in_progress_at <= since)
    return [(SizeClass(*row[:6]), ModelPin(*row[6:])) for row in conn.execute(query)]


@dataclass(frozen=True, slots=True)
class Kind:
    """A size class of all running batches of a model together, with Shards that wait.

    The numbers of Jobs and tokens are those of one of these Shards, `num_waiting_tokens` are the
    expected ones of all.
    """

    model: ModelPin
    size_class: str
    min_row_tokens: int
    max_row_tokens: int
    least_row_tokens: int
    num_jobs: int
    num_prompt_tokens: int
    num_expected_tokens: int
    num_waiting_tokens: int


def list_kinds(conn: Connection) -> list[Kind]:
    """By model and name; the batches of a model may call it by several names."""
    of, one, waiting = batches.c, size_classes.c, shards.c
    model = (of.model_revision, of.tokenizer_hash, of.dtype)
    query = (
        select(
            *(*model, one.size_class, func.min(one.min_row_tokens)),
            *(func.max(one.max_row_tokens), func.max(one.least_row_tokens)),
            *(func.min(of.model_name), func.min(one.batch_id)),
            func.sum(waiting.num_expected_tokens),
        )
        .join(batches, of.id == one.batch_id)
        .join(
            shards,
            (waiting.batch_id == one.batch_id)
            & (waiting.state == _WAITING)
            & (waiting.size_class == one.size_class),
        )
        .where(of.status == BatchStatus.IN_PROGRESS, of.freeze_reason.is_(None))
        .group_by(*model, one.size_class)
        .order_by(*model, one.size_class)
    )
    found = []
    for (
        revision,
        tokenizer,
        dtype,
        name,
        shortest,
        longest,
        least,
        called,
        batch_id,
        num_waiting_tokens,
    ) in conn.execute(query):
        sample = conn.execute(
            select(shards.c.num_jobs, shards.c.num_prompt_tokens, shards.c.num_expected_tokens)
            .where(
                shards.c.batch_id == batch_id,
                shards.c.state == _WAITING,
                shards.c.size_class == name,
            )
            .order_by(shards.c.n)
            .limit(1)
        ).one_or_none()
        if sample is not None:
            pin = ModelPin(called, revision, tokenizer, dtype)
            found.append(
                Kind(
                    *(pin, name, shortest, longest, least),
                    num_jobs=sample.num_jobs,
                    num_prompt_tokens=sample.num_prompt_tokens,
                    num_expected_tokens=sample.num_expected_tokens,
                    num_waiting_tokens=int(num_waiting_tokens),
                )
            )
    return found


def lower(conn: Connection, one: SizeClass) -> None:
    """Its longest rows were refused: what is left needs no more than its Shards say."""
    of = shards.c
    query = select(
        func.min(of.max_row_tokens), func.max(of.max_row_tokens), func.max(of.least_row_tokens)
    ).where(of.batch_id == one.batch_id, of.size_class == one.size_class, of.state != _DONE)
    shortest, longest, least = (value or 0 for value in conn.execute(query).one())
    _replace(
        conn,
        replace(one, min_row_tokens=shortest, max_row_tokens=longest, least_row_tokens=least),
    )


def _replace(conn: Connection, one: SizeClass) -> None:
    statement = update(size_classes).where(
        size_classes.c.tenant_id == one.tenant_id,
        size_classes.c.batch_id == one.batch_id,
        size_classes.c.size_class == one.size_class,
    )
    conn.execute(
        statement.values(
            min_row_tokens=one.min_row_tokens,
            max_row_tokens=one.max_row_tokens,
            least_row_tokens=one.least_row_tokens,
        )
    )
