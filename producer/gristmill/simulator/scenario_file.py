"""Scenarios as JSON documents: the values of scenarios.py, field by field."""

from __future__ import annotations

import json
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from gristmill.errors import UsageError
from gristmill.simulator.scenarios import SCENARIOS, Scenario

_NAME = re.compile(r"[A-Za-z0-9_-]+")


def find_scenario(name: str) -> Scenario:
    """One that comes with the program, or the JSON file of that name. Raises UsageError."""
    if name in SCENARIOS:
        return SCENARIOS[name]()
    path = Path(name)
    if not path.is_file():
        known = ", ".join(SCENARIOS)
        raise UsageError(f"There is no scenario {name!r}: give a JSON file, or one of {known}.")
    return read_scenario(path.read_bytes(), name)


def read_scenario(document: bytes, name: str) -> Scenario:
    """Raises UsageError that says what is wrong with the document."""
    try:
        found = msgspec.json.decode(document)
        _refuse_unknown(found, Scenario, "")
        scenario = msgspec.convert(found, Scenario)
        check(scenario)
    except (msgspec.DecodeError, ValueError) as error:
        raise UsageError(
            f"{name} is no scenario: {error}. `gristmill simulate mixed --json` prints one."
        ) from error
    return scenario


def to_document(scenario: Scenario) -> dict[str, Any]:
    """What `read_scenario` reads, as JSON values."""
    made: dict[str, Any] = msgspec.to_builtins(scenario)
    return json.loads(json.dumps(made))  # type: ignore[no-any-return]


def check(scenario: Scenario) -> None:
    """Raises ValueError for what cannot be simulated."""
    if not any(count for _, count in scenario.fleet):
        raise ValueError("fleet: there is no machine in it")
    for machine, count in scenario.fleet:
        rates = [rate for _, rate in machine.prefill_tokens_per_s]
        limits = (machine.max_row_tokens, machine.max_num_seqs, machine.kv_tokens)
        if count < 0 or not rates or min(*rates, *limits, machine.decode_tokens_per_s) <= 0:
            raise ValueError(f"fleet: limits and speeds of {machine.name} must be above 0")
        if machine.max_num_batched_tokens < machine.max_num_seqs:
            raise ValueError(
                f"fleet: {machine.name} has max_num_batched_tokens below max_num_seqs, and every "
                "decoding row needs one token a step"
            )
    if not _NAME.fullmatch(scenario.name):
        raise ValueError("trace.name: letters, digits, '-' and '_', since plots are called so")
    ids = [batch.id for batch in scenario.trace.batches]
    if not ids or len(set(ids)) < len(ids):
        raise ValueError("trace: there must be batches, and each has an id of its own")
    for batch in scenario.trace.batches:
        if batch.num_rows < 1 or batch.arrives_at < 0 or not batch.kinds:
            raise ValueError(f"trace: batch {batch.id} needs rows, kinds, and arrives_at from 0 on")
        if any(kind.max_tokens < 1 or kind.prompt.median < 1 for kind in batch.kinds):
            raise ValueError(f"trace: batch {batch.id} has rows without tokens")
    num_workers = sum(count for _, count in scenario.fleet)
    for death in scenario.deaths:
        if not 0 <= death.worker < num_workers:
            raise ValueError(f"deaths: there is no worker {death.worker}, they count from 0")


def _refuse_unknown(found: Any, kind: Any, place: str) -> None:
    """A field that nobody reads is a misspelt one."""
    if is_dataclass(kind) and isinstance(found, dict):
        hints = get_type_hints(kind)
        names = {field.name for field in fields(kind)}
        for name, value in found.items():
            if name not in names:
                raise ValueError(f"unknown field `{place}{name}`")
            _refuse_unknown(value, hints[name], f"{place}{name}.")
    elif isinstance(found, list):
        inner = [one for one in get_args(kind) if one is not Ellipsis]
        kinds = inner * len(found) if len(inner) == 1 else inner
        for i, (value, one) in enumerate(zip(found, kinds, strict=False)):
            _refuse_unknown(value, one, f"{place[:-1]}[{i}].")
