"""Proves, from what all processes of a run have left, that DESIGN section 5 held.

Reads the input, the final files and the histories of the processes; nothing of the Ledger.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from local_run import comparable
from traces import Attempts, AttemptTrace, Event, Evidence, Report, read_attempts, read_history


def check(evidence: Evidence) -> Report:
    """Every rule over everything; the report says which were broken and how."""
    report = Report()
    processes = [read_history(path) for path in evidence.histories]
    faults = [e for events in processes for e in events if e["e"] == "fault"]
    report.num_faults = Counter(fault["kind"] for fault in faults)
    attempts = read_attempts(processes, report)
    report.num_attempts = len(attempts)
    report.num_shards = len({attempt.shard for attempt in attempts.values()})
    steps = [at for attempt in attempts.values() for at, _ in attempt.decoded]
    report.decoding_s = max(steps, default=0.0) - min(steps, default=0.0)
    for events in processes:
        _check_order(events, report)
        _check_fences(events, attempts, evidence.lease_s, report)
    _check_tokens(attempts, report)
    _measure_kills(attempts, faults, report)
    control = sorted((e for events in processes for e in events if "batch" in e), key=_time)
    counted = _check_acceptance(control, report)
    _check_freeze(control, report)
    _check_files(evidence, control, counted, report)
    return report


def _time(event: Event) -> float:
    return float(event["t"])


def _check_order(events: list[Event], report: Report) -> None:
    """Store, then ring, then ack."""
    rule = "store, then ring, then ack"
    storing: dict[tuple[str, int], str | None] = {}
    stored: dict[str, set[int]] = defaultdict(set)
    rung: dict[str, set[int]] = defaultdict(set)
    closed: set[str] = set()
    for event in events:
        match event["e"]:
            case "storing":
                storing[event["attempt"], event["seq"]] = event["closed"]
            case "stored":
                stored[event["attempt"]].add(event["seq"])
                if storing[event["attempt"], event["seq"]]:
                    closed.add(event["attempt"])
            case "ringing" if "attempt" in event:
                rung[event["attempt"]].add(event["seq"])
            case "acking" | "releasing":
                attempt = event["attempt"]
                if attempt not in closed:
                    report.refuse(rule, f"{attempt} {event['e']} before its last Segment is stored")
                elif not stored[attempt] <= rung[attempt]:
                    report.refuse(rule, f"{attempt} {event['e']} before it has rung")
    begun = {attempt for attempt, _ in storing}
    for attempt in begun:
        early = rung[attempt] - stored[attempt] - {0}  # 0 is the open mark
        if early:
            report.refuse(rule, f"{attempt} rang for Segments {early} that are not stored")


def _check_fences(events: list[Event], attempts: Attempts, lease_s: float, report: Report) -> None:
    """No step on a Lease that may have ended, but the one that was under way."""
    since: dict[str, float] = {}
    steps_beyond: Counter[str] = Counter()
    for event in events:
        match event["e"]:
            case "received":
                since[event["lease"]] = event["since"]
            case "renewed":
                since.update(dict.fromkeys(event["leases"], event["since"]))
            case "decoding":
                for attempt_id in event["tokens"]:
                    lease = attempts[event["pid"], attempt_id].lease
                    if event["t"] > since[lease] + lease_s:
                        steps_beyond[attempt_id] += 1
    for attempt_id, num_steps in steps_beyond.items():
        if num_steps > 1:
            report.refuse(
                "a worker fences itself before its Lease ends",
                f"{attempt_id} went on for {num_steps} steps",
            )


def _check_tokens(attempts: Attempts, report: Report) -> None:
    """What lay in the Store when an Attempt read is never decoded by it."""
    by_shard: dict[int, list[AttemptTrace]] = defaultdict(list)
    for attempt in attempts.values():
        by_shard[attempt.shard].append(attempt)
    for of_shard in by_shard.values():
        seen: dict[tuple[int, int, int], str | None] = {}
        for attempt in sorted(of_shard, key=lambda attempt: attempt.opening_at):
            finished, ends = _known_before(attempt, of_shard)
            mine: set[tuple[int, int, int]] = set()
            for job, choice, position in _tokens(attempt):
                token = (job, choice, position)
                report.num_decoded += 1
                if token in mine:
                    report.refuse("never decode twice", f"{attempt.id} did {token} twice")
                if job in finished or position < ends.get((job, choice), 0):
                    report.refuse(
                        "never decode twice",
                        f"{attempt.id} decoded {token} of Shard {attempt.shard}, which was stored",
                    )
                if token in seen:
                    report.num_again += 1
                    report.num_again_after_sigterm += seen[token] == "drained"
                mine.add(token)
            if attempt.closed in ("done", "drained", "released"):
                _check_closing(attempt, mine, report)
            seen |= dict.fromkeys(mine, attempt.closed)


def _tokens(attempt: AttemptTrace) -> Iterator[list[int]]:
    for _, tokens in attempt.decoded:
        yield from tokens


def _known_before(
    attempt: AttemptTrace, of_shard: list[AttemptTrace]
) -> tuple[set[int], dict[tuple[int, int], int]]:
    """Jobs that had results, and ends of checkpoints, in the Store when an Attempt read it."""
    finished: set[int] = set()
    ends: dict[tuple[int, int], int] = {}
    for other in of_shard:
        for at, _, jobs, of_segment, _ in other.stored:
            if other is not attempt and at < attempt.reading_at:
                finished.update(jobs)
                for job, choice, end in of_segment:
                    ends[job, choice] = max(end, ends.get((job, choice), 0))
    return finished, ends


def _check_closing(
    attempt: AttemptTrace, decoded: set[tuple[int, int, int]], report: Report
) -> None:
    """An Attempt that was closed in peace has stored all that it decoded."""
    finished = {job for _, _, jobs, _, _ in attempt.stored for job in jobs}
    ends: dict[tuple[int, int], int] = {}
    for _, _, _, of_segment, _ in attempt.stored:
        ends.update({(job, choice): end for job, choice, end in of_segment})
    for job, choice, position in decoded:
        if job not in finished and position >= ends.get((job, choice), 0):
            report.refuse(
                "after SIGTERM nothing is lost",
                f"{attempt.id} closed as {attempt.closed} without {(job, choice, position)}",
            )
            return


def _measure_kills(attempts: Attempts, faults: list[Event], report: Report) -> None:
    """How soon the rows of a dead worker run again, and how much of its work was lost."""
    kills = {fault["pid"]: fault["t"] for fault in faults if fault["kind"] == "SIGKILL"}
    for attempt in attempts.values():
        killed_at = kills.get(attempt.pid)
        if killed_at is None or attempt.closed or attempt.opening_at > killed_at:
            continue
        later = [
            other.opening_at
            for other in attempts.values()
            if other.shard == attempt.shard and other.opening_at > killed_at
        ]
        if later:
            report.takeovers_s.append(min(later) - killed_at)
        finished = {job for _, _, jobs, _, _ in attempt.stored for job in jobs}
        ends: dict[tuple[int, int], int] = {}
        for _, _, _, of_segment, _ in attempt.stored:
            ends.update({(job, choice): end for job, choice, end in of_segment})
        lost = [
            at
            for at, tokens in attempt.decoded
            for job, choice, position in tokens
            if job not in finished and position >= ends.get((job, choice), 0)
        ]
        if lost:
            report.losses_s.append(killed_at - min(lost))


def _check_acceptance(control: list[Event], report: Report) -> dict[tuple[int, int], str]:
    """Each Job counts once. By (Shard, Job), the Attempt whose result counts."""
    by_number: dict[int, list[Any]] = {}
    for event in control:
        if event["e"] == "accepting":
            # A transaction that did not commit gives its numbers to the next one.
            for segment in event["segments"]:
                by_number[segment[0]] = segment
    if sorted(by_number) != list(range(1, len(by_number) + 1)):
        report.refuse("acceptance numbers have no gap", f"{len(by_number)} of {max(by_number)}")
    counted: dict[tuple[int, int], str] = {}
    for _, (_, shard, attempt_id, _, jobs) in sorted(by_number.items()):
        for job in jobs:
            if (shard, job) in counted:
                report.refuse(
                    "two Attempts never both count",
                    f"Job {job} of Shard {shard}: {counted[shard, job]} and {attempt_id}",
                )
            counted[shard, job] = attempt_id
    return counted


def _check_freeze(control: list[Event], report: Report) -> None:
    """Nothing is accepted after the freeze."""
    ends = [e["t"] for e in control if e["e"] in ("frozen", "frozen-listed")]
    if not ends:
        report.refuse("a batch ends", "it was never frozen")
        return
    late = [e for e in control if e["e"] == "accepting" and e["t"] > min(ends)]
    if late:
        report.refuse("nothing is accepted after the freeze", f"{late[0]['segments']}")


def _check_files(
    evidence: Evidence,
    control: list[Event],
    counted: dict[tuple[int, int], str],
    report: Report,
) -> None:
    """Each row once, in order, in one of the two files, from the Attempt that counts."""
    wanted = [json.loads(line)["custom_id"] for line in evidence.input.read_text().splitlines()]
    report.num_rows = len(wanted)
    output, errors = _read_lines(evidence.output), _read_lines(evidence.errors)
    of_output = [line["custom_id"] for line in output]
    found = Counter(of_output) + Counter(line["custom_id"] for line in errors)
    rule = "each row is in exactly one file, once"
    for name, count in (Counter(wanted) - found).items():
        report.refuse(rule, f"{name} is lost ({count})")
    for name, count in (found - Counter(wanted)).items():
        report.refuse(rule, f"{name} is there {count} times too often")
    place = {name: idx for idx, name in enumerate(wanted)}
    for lines in (output, errors):
        order = [place.get(line["custom_id"], -1) for line in lines]
        if order != sorted(order):
            report.refuse("the order of the files is that of the input", f"{order[:20]}")
    if evidence.undisturbed is not None:
        beside = evidence.undisturbed.with_suffix(".errors.jsonl")
        for lines, peaceful in ((output, evidence.undisturbed), (errors, beside)):
            expected = map(comparable, _read_lines(peaceful))
            if list(map(comparable, lines)) != list(expected):
                report.refuse("the output does not depend on faults", peaceful.name)
    job_of_row = {
        row: (event["shard"], job)
        for event in control
        if event["e"] == "shard-written"
        for job, rows in enumerate(event["rows"])
        for row in rows
    }
    for line in output:
        receipt = line["response"]["body"]["gristmill"]
        counts = counted.get(job_of_row[place[line["custom_id"]]])
        if receipt["attempt"] != counts:
            report.refuse(
                "a row counts from the first accepted Segment",
                f"{line['custom_id']} is from {receipt['attempt']}, {counts} counts",
            )


def _read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]
