"""Tickets: of the messages that ring for a task of one object, the one that counts.

A broker may lose a message, repeat it, or give it to two at once. Each carries the word of its
ticket, which changes when somebody takes it up: so a batch (or an estimate) is worked on by one at
a time, and a message that was repeated is known by its word. Clocks that disagree cost work that is
done twice, and nothing else.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace

from sqlalchemy import ColumnElement, Connection, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from gristmill.ledger.oldest import remove_oldest
from gristmill.ledger.schema_tickets import tickets

#: A message that nobody has taken up is rung again after so long, which doubles each time.
FIRST_WAIT_S = 10
_MAX_DOUBLINGS = 6
#: Who works on a slice says so at least so often; else the task is rung again.
HOLD_S = 15
#: A ticket that nobody needs any more, because its object has ended another way.
_FORGOTTEN_AFTER_S = 86_400
_MAX_FORGOTTEN = 10_000


@dataclass(frozen=True, slots=True)
class Ticket:
    task: str
    tenant_id: str
    object_id: str
    word: str


def ring(conn: Connection, task: str, tenant_id: str, object_id: str, *, now: int) -> Ticket | None:
    """A ticket to be sent; None when one is under way, or is being worked on."""
    ticket = Ticket(task, tenant_id, object_id, _new_word())
    found = conn.execute(select(tickets).where(*_of(ticket))).mappings().one_or_none()
    if found is None:
        # Somebody else may be a moment faster.
        with suppress(IntegrityError), conn.begin_nested():
            conn.execute(
                insert(tickets).values(
                    task=task,
                    object_id=object_id,
                    tenant_id=tenant_id,
                    word=ticket.word,
                    due_at=now + FIRST_WAIT_S,
                    num_rings=1,
                )
            )
            return ticket
        return None
    num_rings = int(found["num_rings"])
    values = {
        "word": ticket.word,
        "due_at": now + FIRST_WAIT_S * 2 ** min(num_rings, _MAX_DOUBLINGS),
        "num_rings": num_rings + 1,
    }
    is_due = (tickets.c.word == found["word"], tickets.c.due_at <= now)
    rung = conn.execute(update(tickets).where(*_of(ticket), *is_due).values(**values))
    return ticket if rung.rowcount else None


def take(conn: Connection, ticket: Ticket, *, now: int) -> Ticket | None:
    """Begin to work on it: the ticket that is held from now on; None when it does not count."""
    held = replace(ticket, word=_new_word())
    return held if _change(conn, ticket, word=held.word, due_at=now + HOLD_S) else None


def keep(conn: Connection, held: Collection[Ticket], *, now: int) -> None:
    """These are still being worked on."""
    for ticket in held:
        _change(conn, ticket, due_at=now + HOLD_S)


def go_on(conn: Connection, held: Ticket, *, now: int) -> Ticket | None:
    """The task got on and is not done: the ticket for its next slice; None when it was lost."""
    following = replace(held, word=_new_word())
    values = {"word": following.word, "due_at": now + FIRST_WAIT_S, "num_rings": 1}
    return following if _change(conn, held, **values) else None


def finish(conn: Connection, held: Ticket) -> None:
    """There is nothing left to do."""
    conn.execute(delete(tickets).where(*_of(held), tickets.c.word == held.word))


def forget_old(conn: Connection, *, now: int) -> None:
    """Remove those that nobody has rung for a day, a bounded part at a time."""
    before = now - _FORGOTTEN_AFTER_S
    remove_oldest(conn, tickets, tickets.c.due_at, before=before, limit=_MAX_FORGOTTEN)


def _change(conn: Connection, ticket: Ticket, **values: object) -> bool:
    statement = update(tickets).where(*_of(ticket), tickets.c.word == ticket.word)
    return conn.execute(statement.values(**values)).rowcount == 1


def _of(ticket: Ticket) -> tuple[ColumnElement[bool], ...]:
    return (
        tickets.c.task == ticket.task,
        tickets.c.object_id == ticket.object_id,
        tickets.c.tenant_id == ticket.tenant_id,
    )


def _new_word() -> str:
    return secrets.token_hex(8)
