"""What must be true in a small world, whatever happens (DESIGN section 5).

Proven from the input, the result files and what workers were seen to decode, beside the Ledger.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from small_control import all_batches
from small_rows import SmallRow, refused_text
from small_workers import LEASE_S, Life

from gristmill.errors import CorruptDocument, KeyNotFound
from gristmill.ledger import segments
from gristmill.ledger.batch import Batch
from gristmill.ledger.status import ENDS, FreezeReason
from gristmill.stores.keys import file_key, segments_prefix
from gristmill.types import ShardPointer
from gristmill.wire import decode_segment

_Place = tuple[int, int]
#: An Attempt shows itself so often, and so keeps what it has decoded.
_FLUSH_S = 0.4 * LEASE_S
_STOPPED = {
    FreezeReason.BUDGET: "budget_exceeded",
    FreezeReason.EXPIRED: "batch_expired",
    FreezeReason.CANCELLED: "batch_cancelled",
}


@dataclass
class _Seen:
    """Of one Attempt: what the Store knew when it read its Shard, and what it has decoded."""

    pointer: ShardPointer
    finished: set[int]
    lengths: dict[_Place, int]
    decoded: dict[tuple[int, int, int], float] = field(default_factory=dict)


class Rules:
    def __init__(self, world: Any) -> None:
        self._world = world
        self._read: dict[str, _Seen] = {}
        self._attempts: dict[str, _Seen] = {}
        self._turn_at: dict[str, list[float]] = defaultdict(list)
        self._counts: dict[str, tuple[int, int]] = {}
        #: Status and files of batches, as they were when their end was first seen.
        self._ends: dict[str, tuple[str, bytes, bytes]] = {}
        self.num_decoded_again = 0

    # ------------------------------------------------------------------------ what workers do

    def at(self, point: str, /, **facts: Any) -> None:
        if point == "reading":
            pointer = self._pointer_of(facts["lease"])
            self._read[facts["lease"]] = _Seen(pointer, *self._known(pointer))
        elif point == "opening":
            self._attempts[facts["attempt"]] = self._read[facts["lease"]]

    def turns(self, life: Life) -> None:
        self._turn_at[life.name].append(self._world.clock())

    def steps(self, life: Life) -> None:
        """Nobody else has what is computed here, but for the step that is under way."""
        took_s = self._world.clock() - self._turn_at[life.name][-1]
        for attempt in life.worker._attempts:
            owner = self._owner_of(attempt.lease)
            assert owner in (None, attempt.lease.id) or took_s >= LEASE_S / 6 - 5, (
                f"rule 4: {life.name} computes {attempt.id}, whose message another has"
            )

    def decoded(self, seq_id: str, position: int) -> None:
        attempt_id, job_idx, choice_idx = seq_id.split("/")
        seen = self._attempts[attempt_id]
        place = int(job_idx), int(choice_idx)
        assert place[0] not in seen.finished, f"rule 2: {seq_id} was finished"
        assert position >= seen.lengths.get(place, 0), f"rule 2: {seq_id} at {position}"
        seen.decoded[*place, position] = self._world.clock()

    def dies(self, life: Life) -> None:
        """No more is lost than what one flush interval holds."""
        turns = self._turn_at[life.name]
        trouble_at = self._world.fates.trouble_at.get(life.name, 0.0)
        for attempt in life.worker._attempts:
            for (job_idx, choice_idx, position), at in self._lost(attempt.id):
                # The turn in which it dies was not completed.
                chances = [t for t in turns[:-1] if t >= at + _FLUSH_S]
                assert not chances or trouble_at >= at, (
                    f"rule 2: {attempt.id} loses {job_idx}/{choice_idx} at {position} of {at}"
                )

    def drained(self, life: Life) -> None:
        """Nothing is lost."""
        if self._world.damage:
            return
        for attempt_id, seen in self._attempts.items():
            if seen in [self._attempts.get(a.id) for a in life.worker._attempts]:
                assert not self._lost(attempt_id), f"rule 2: {attempt_id} was drained"

    def _lost(self, attempt_id: str) -> list[tuple[tuple[int, int, int], float]]:
        """What it has decoded and the Store does not know."""
        seen = self._attempts.get(attempt_id)
        if seen is None or self._world.damage:
            return []
        finished, lengths = self._known(seen.pointer)
        return [
            (at, when)
            for at, when in seen.decoded.items()
            if at[0] not in finished and at[2] >= lengths.get(at[:2], 0)
        ]

    def _known(self, pointer: ShardPointer) -> tuple[set[int], dict[_Place, int]]:
        """Jobs with a result, and how far Choices are, as far as it can be read."""
        prefix = segments_prefix(pointer.tenant_id, pointer.batch_id, pointer.run_id, pointer.n)
        finished: set[int] = set()
        of_attempts: dict[tuple[str, int, int], int] = defaultdict(int)
        lengths: dict[_Place, int] = {}
        for key in self._world.store.list(prefix):
            try:
                segment = decode_segment(self._world.store.objects[key])
            except CorruptDocument:
                continue
            finished |= {result.job_idx for result in segment.results}
            for one in segment.checkpoints:
                chain = segment.attempt_id, one.job_idx, one.choice_idx
                if of_attempts[chain] == one.start:
                    of_attempts[chain] += len(one.token_ids)
                    place = one.job_idx, one.choice_idx
                    lengths[place] = max(of_attempts[chain], lengths.get(place, 0))
        return finished, lengths

    def _pointer_of(self, lease_id: str) -> ShardPointer:
        for life in self._world.workers.lives:
            for fetched in life.worker._intake._fetched:
                if fetched.lease.id == lease_id:
                    return fetched.pointer
        raise AssertionError(f"nobody has fetched {lease_id}")

    def _owner_of(self, lease: Any) -> str | None:
        """Whose the message of a Lease is now; None when it is nobody's."""
        number = int(lease.id.split("-")[0])
        message = self._world.queue._lanes.get(lease.lane, {}).get(number)
        if message is None or not self._world.queue._is_leased(message):
            return None
        found: str | None = message.lease_id
        return found

    # ------------------------------------------------------------------------ batches

    def ledger_is_another(self) -> None:
        """What it has counted may be less now; what has ended has ended."""
        self._counts.clear()

    def check_counts(self) -> None:
        """They only grow, never beyond the total; and an end is an end."""
        if self._world.stewards._writing or {"control-0", "caller"} <= self._world.acting:
            return  # being rebuilt, perhaps
        for batch in self._world.quick_look():
            if batch["status"] in ENDS:
                self._check_end_stays(batch)
                continue
            completed, failed = self._counts.get(batch["id"], (0, 0))
            new = self._counts[batch["id"]] = batch["completed"], batch["failed"]
            assert new[0] >= completed and new[1] >= failed, f"{batch['id']} counts less"
            assert sum(new) <= batch["total"]

    def check_end(self) -> None:
        """Of all batches, when the last has ended."""
        found = all_batches(self._world.ledger)
        assert {batch.id for batch in found} >= self._ends.keys(), "a batch is lost"
        for batch in found:
            self._check_batch(batch)

    def _check_end_stays(self, batch: Mapping[str, Any]) -> None:
        status, tenant_id = batch["status"], batch["tenant_id"]
        ids = batch["output_file_id"], batch["error_file_id"]
        end = (status, *(self._file(tenant_id, file_id) for file_id in ids))
        was = self._ends.setdefault(batch["id"], end)
        assert was == end, f"{batch['id']} has another end: {was[0]}, {status}"

    def _check_batch(self, batch: Batch) -> None:
        assert batch.errors == (), batch.errors
        of_tenant = batch.tenant_id
        output = list(map(json.loads, self._file(of_tenant, batch.output_file_id).splitlines()))
        errors = list(map(json.loads, self._file(of_tenant, batch.error_file_id).splitlines()))
        counts = batch.completed, batch.failed, batch.total
        assert counts == (len(output), len(errors), len(output) + len(errors)), counts
        if batch.in_progress_at is None:
            assert batch.total == 0
            return
        rows = self._rows_of(batch)
        names = [row.custom_id for row in rows]
        found = Counter(line["custom_id"] for line in output + errors)
        assert found == Counter(names), f"rule 1: {found - Counter(names)} {Counter(names) - found}"
        place = {name: idx for idx, name in enumerate(names)}
        for lines in (output, errors):
            order = [place[line["custom_id"]] for line in lines]
            assert order == sorted(order)
        for line in output:
            self._check_answer(batch, rows[place[line["custom_id"]]], line)
        for line in errors:
            self._check_error(batch, rows[place[line["custom_id"]]], line)
        self._check_usage(batch, output)
        self._check_numbers(batch)

    def _check_answer(self, batch: Batch, row: SmallRow, line: Any) -> None:
        assert row.code is None, f"{row} has an answer"
        texts = [choice["text"] for choice in line["response"]["body"]["choices"]]
        assert texts == row.texts(batch.seed), f"rule 3: {batch.id} {row}"

    def _check_error(self, batch: Batch, row: SmallRow, line: Any) -> None:
        error = line["error"] or line["response"]["body"]["error"]
        code = error["code"]
        if code == row.code or refused_text(row) in error["message"]:
            return
        stopped = _STOPPED.get(batch.freeze_reason) if batch.freeze_reason else None
        assert code == stopped, f"rule 5: {batch.id} {row} {error} {batch.freeze_reason}"

    def _check_usage(self, batch: Batch, output: list[Any]) -> None:
        told = [line["response"]["body"]["usage"] for line in output]
        for name in ("prompt_tokens", "completion_tokens"):
            total = sum(usage[name] for usage in told)
            assert getattr(batch.usage, name) == total, f"{batch.id}: {batch.usage} {total}"

    def _check_numbers(self, batch: Batch) -> None:
        with self._world.ledger.read() as conn:
            listed = [number for number, *_ in segments.stream_all(conn, batch.tenant_id, batch.id)]
        # Of one that had ended before the Ledger was rebuilt only its files are left.
        assert not listed or listed == list(range(1, batch.last_accepted + 1))

    def _rows_of(self, batch: Batch) -> list[SmallRow]:
        rows: list[SmallRow] = self._world.callers.rows_of_file[batch.input_file_id]
        if batch.retry_file_id is None:
            return rows
        body = self._world.store.objects[file_key(batch.tenant_id, batch.retry_file_id)]
        named = {json.loads(line)["custom_id"] for line in body.splitlines()}
        return [row for row in rows if row.custom_id in named]

    def _file(self, tenant_id: str, file_id: str | None) -> bytes:
        if file_id is None:
            return b""
        try:
            found: bytes = self._world.store.get(file_key(tenant_id, file_id))
        except KeyNotFound:
            raise AssertionError(f"the file {file_id} is lost") from None
        return found
