"""What a process asks of AWS: each call of boto3 as a line of JSON, in a file that tests read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from botocore.client import BaseClient

#: Of the parameters of a call, those that say what it is about.
_ABOUT = ("Bucket", "Key", "Prefix", "QueueUrl", "QueueName", "Namespace")


@dataclass(frozen=True, order=True)
class Call:
    """By the names that the API has, such as `s3`, `GetObject`."""

    service: str
    operation: str
    about: tuple[tuple[str, str], ...]

    def __getitem__(self, name: str) -> str:
        """A parameter that says what it is about; empty where it has none of this name."""
        return dict(self.about).get(name, "")


def record_calls(path: Path) -> None:
    """From now on, for as long as this process lives."""
    make_call = BaseClient._make_api_call  # type: ignore[attr-defined]

    def make_and_note(client: Any, operation: str, parameters: dict[str, Any]) -> Any:
        about = {name: parameters[name] for name in _ABOUT if name in parameters}
        line = json.dumps([client.meta.service_model.service_name, operation, about])
        with path.open("a") as file:
            file.write(f"{line}\n")
        return make_call(client, operation, parameters)

    patch.object(BaseClient, "_make_api_call", make_and_note).start()


def read_calls(path: Path) -> set[Call]:
    """Each kind of call once."""
    return {
        Call(service, operation, tuple(sorted(about.items())))
        for service, operation, about in map(json.loads, path.read_text().splitlines())
    }
