"""How a batch went over time, and of which kinds its failures are: what a chart of it needs.

Counted in the transaction that accepts the rows. Bounded: a course has at most MAX_POINTS points;
when it would have more, each two become one that lasts twice as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection, delete, insert, select, update

from gristmill.ledger.batch import Batch
from gristmill.ledger.schema_courses import courses
from gristmill.types import Usage

MAX_POINTS = 120
#: What a point lasts at first, in seconds.
FIRST_WIDTH_S = 5
#: Kinds of failures that are told apart; the rest counts as OTHER.
_MAX_KINDS = 40
_MAX_KIND_CHARS = 64
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Point:
    """What was accepted while it lasted. `rows` counts those that failed too."""

    rows: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Point) -> Point:
        return Point(
            self.rows + other.rows,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )


@dataclass(frozen=True, slots=True)
class Course:
    """Points of `width_s` seconds each, without gaps, from `begins_at` (Unix time) on.

    `failures` are rows by the code of their error.
    """

    begins_at: int
    width_s: int = FIRST_WIDTH_S
    points: tuple[Point, ...] = ()
    failures: Mapping[str, int] = field(default_factory=dict)

    def with_point(self, point: Point, *, now: int) -> Course:
        """With what was accepted just now; at once with the last point if the clock went back."""
        course = self
        while (idx := max(now - course.begins_at, 0) // course.width_s) >= MAX_POINTS:
            course = course._coarser()
        idx = max(idx, len(course.points) - 1)
        points = list(course.points) + [Point()] * (idx + 1 - len(course.points))
        points[idx] += point
        return replace(course, points=tuple(points))

    def with_failures(self, failures: Mapping[str, int]) -> Course:
        counted = dict(self.failures)
        for code, num_rows in failures.items():
            kind = code[:_MAX_KIND_CHARS] or OTHER
            if kind not in counted and len(counted) >= _MAX_KINDS:
                kind = OTHER
            counted[kind] = counted.get(kind, 0) + num_rows
        return replace(self, failures=counted)

    def _coarser(self) -> Course:
        padded = (*self.points, Point())
        pairs = [padded[i] + padded[i + 1] for i in range(0, len(self.points), 2)]
        return replace(self, width_s=2 * self.width_s, points=tuple(pairs))


def record(
    conn: Connection,
    batch: Batch,
    *,
    now: int,
    num_rows: int,
    used: Usage,
    failures: Mapping[str, int],
) -> None:
    """In the transaction that lets these rows count, which holds the batch."""
    found = find(conn, batch.tenant_id, batch.id)
    point = Point(num_rows, used.prompt_tokens, used.completion_tokens)
    course = (found or Course(now)).with_point(point, now=now).with_failures(failures)
    values = {
        "begins_at": course.begins_at,
        "width_s": course.width_s,
        "points": [[p.rows, p.prompt_tokens, p.completion_tokens] for p in course.points],
        "failures": dict(course.failures),
    }
    if found is None:
        key = {"batch_id": batch.id, "tenant_id": batch.tenant_id}
        conn.execute(insert(courses).values(**key, **values))
        return
    of_batch = (courses.c.batch_id == batch.id, courses.c.tenant_id == batch.tenant_id)
    conn.execute(update(courses).where(*of_batch).values(**values))


def find(conn: Connection, tenant_id: str, batch_id: str) -> Course | None:
    """None where nothing was accepted yet, or it was by an earlier version."""
    query = select(courses).where(courses.c.batch_id == batch_id, courses.c.tenant_id == tenant_id)
    row = conn.execute(query).one_or_none()
    if row is None:
        return None
    points = tuple(Point(*numbers) for numbers in row.points)
    return Course(row.begins_at, row.width_s, points, row.failures)


def forget(conn: Connection, tenant_id: str, batch_id: str) -> None:
    """Its owner does not see the batch any more."""
    conn.execute(
        delete(courses).where(courses.c.batch_id == batch_id, courses.c.tenant_id == tenant_id)
    )
