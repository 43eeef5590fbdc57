"""What the processes of a run have left, read: events, Attempts, and a report to write into."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def read_history(path: Path) -> list[Event]:
    """What a process wrote; a kill may have cut the last line."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


@dataclass(frozen=True)
class Evidence:
    input: Path
    output: Path
    errors: Path
    #: One file for each process, and one for the faults.
    histories: list[Path]
    lease_s: float
    #: The output of the same batch in peace, its errors beside it.
    undisturbed: Path | None = None


@dataclass
class AttemptTrace:
    """What one Attempt did, from the history of its process."""

    id: str
    pid: int
    shard: int
    lease: str
    reading_at: float
    opening_at: float
    #: (time, seq, Jobs that have their result, ends of checkpoints, why it closed)
    stored: list[tuple[float, int, list[int], list[list[int]], str | None]] = field(
        default_factory=list
    )
    decoded: list[tuple[float, list[list[int]]]] = field(default_factory=list)

    @property
    def closed(self) -> str | None:
        return self.stored[-1][4] if self.stored else None


#: By process and id: two that share an id are still two.
Attempts = dict[tuple[int, str], AttemptTrace]


@dataclass
class Report:
    """`violations` is empty, or something that must stay true did not."""

    violations: list[str] = field(default_factory=list)
    num_rows: int = 0
    num_faults: Counter[str] = field(default_factory=Counter)
    num_decoded: int = 0
    #: From the first to the last step of any worker.
    decoding_s: float = 0.0
    #: Tokens that were decoded before.
    num_again: int = 0
    #: Of them, tokens of Attempts that were drained.
    num_again_after_sigterm: int = 0
    num_attempts: int = 0
    num_shards: int = 0
    #: Seconds from each kill to the next Attempt at each Shard that the dead worker had.
    takeovers_s: list[float] = field(default_factory=list)
    #: Seconds of decoding that each kill cost, at most.
    losses_s: list[float] = field(default_factory=list)

    def refuse(self, rule: str, what: str) -> None:
        self.violations.append(f"{rule}: {what}")


def read_attempts(processes: list[list[Event]], report: Report) -> Attempts:
    """Every Attempt of all processes; an id that comes twice is a violation."""
    attempts: Attempts = {}
    ids: set[str] = set()
    for events in processes:
        reading: dict[str, float] = {}
        storing: dict[tuple[str, int], Event] = {}
        for event in events:
            match event["e"]:
                case "reading":
                    reading[event["lease"]] = event["t"]
                case "opening":
                    if event["attempt"] in ids:
                        report.refuse("an Attempt's id is never used again", event["attempt"])
                    ids.add(event["attempt"])
                    attempts[event["pid"], event["attempt"]] = AttemptTrace(
                        event["attempt"],
                        event["pid"],
                        event["shard"],
                        event["lease"],
                        reading[event["lease"]],
                        event["t"],
                    )
                case "storing":
                    storing[event["attempt"], event["seq"]] = event
                case "stored":
                    about = storing[event["attempt"], event["seq"]]
                    attempts[event["pid"], event["attempt"]].stored.append(
                        (event["t"], event["seq"], about["jobs"], about["ends"], about["closed"])
                    )
                case "decoding":
                    for attempt_id, tokens in event["tokens"].items():
                        attempts[event["pid"], attempt_id].decoded.append((event["t"], tokens))
    return attempts
