"""Policies of IAM as data: the files that Terraform fills in, and what they allow.

Enough of IAM to say whether a request would be allowed: wildcards in actions and resources, and
conditions that compare text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "infra/terraform/modules/permissions/policies"

#: What Terraform fills in, as in a fleet named `gm`.
BUCKET = "arn:aws:s3:::rows"
QUEUES = "arn:aws:sqs:eu-central-1:123456789012:gm"
VALUES = {
    "bucket": BUCKET,
    "store": f"{BUCKET}/mill",
    "prefix": "mill",
    "queues": QUEUES,
    "namespace": "gristmill",
    "key": "arn:aws:secretsmanager:eu-central-1:123456789012:secret:gm/first-key",
    "secrets": json.dumps(["arn:aws:secretsmanager:eu-central-1:123456789012:secret:gm/key"]),
}


@dataclass(frozen=True)
class Statement:
    effect: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    condition: Mapping[str, Mapping[str, tuple[str, ...]]]

    def matches(self, action: str, resource: str, facts: Mapping[str, str]) -> bool:
        return (
            any(fnmatchcase(action, pattern) for pattern in self.actions)
            and any(fnmatchcase(resource, pattern) for pattern in self.resources)
            and all(
                any(fnmatchcase(facts.get(key, ""), pattern) for pattern in patterns)
                for tests in self.condition.values()
                for key, patterns in tests.items()
            )
        )


def read_policy(component: str) -> list[Statement]:
    """The policy of a component, filled in with VALUES."""
    text = (FOLDER / f"{component}.json").read_text(encoding="utf-8")
    for name, value in VALUES.items():
        text = text.replace("${" + name + "}", value)
    return parse_policy(json.loads(text))


def parse_policy(document: dict[str, Any]) -> list[Statement]:
    return [
        Statement(
            one["Effect"],
            tuple(_listed(one["Action"])),
            tuple(_listed(one["Resource"])),
            {
                test: {key: tuple(_listed(value)) for key, value in keys.items()}
                for test, keys in one.get("Condition", {}).items()
            },
        )
        for one in document["Statement"]
    ]


def allows(policy: list[Statement], action: str, resource: str, **facts: str) -> bool:
    """`facts` are keys of conditions, a double underscore standing for the colon."""
    known = {name.replace("__", ":"): value for name, value in facts.items()}
    found = {one.effect for one in policy if one.matches(action, resource, known)}
    return found == {"Allow"}


def actions_of(policy: list[Statement]) -> Iterator[str]:
    for statement in policy:
        yield from statement.actions


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
