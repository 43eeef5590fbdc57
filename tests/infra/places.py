"""Where things of infra/ lie, and reading them. Starts nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
CHART = INFRA / "helm/gristmill"
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
DOCKERFILES = sorted((INFRA / "docker").glob("*.Dockerfile"))
DASHBOARDS = sorted((INFRA / "grafana/dashboards").glob("*.json"))
RULES = sorted((INFRA / "prometheus/rules").glob("*.yaml"))
ENV_EXAMPLE = INFRA / ".env.example"
COMPOSE = INFRA / "compose.yaml"
OVERLAYS = {name: INFRA / f"compose.{name}.yaml" for name in ("gpu", "monitoring")}

#: What `.env` may hold in these tests: every variable that Compose insists on.
ENV = {
    "MODELS_DIR": "/srv/models",
    "MODEL": "my-model",
    "POSTGRES_PASSWORD": "postgres0000000000",
    "QUEUE_PASSWORD": "queue0000000000000",
    "BROKER_PASSWORD": "broker000000000000",
    "S3_ACCESS_KEY": "access000000000000",
    "S3_SECRET_KEY": "secret000000000000",
    "KEY_PEPPER": "pepper000000000000",
    "GRAFANA_PASSWORD": "grafana00000000000",
}

_VARIABLE = re.compile(r"\$\$|\$\{(?P<name>\w+)(?:(?P<kind>:[-?])(?P<rest>[^}]*))?\}")


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


def read_json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def variables_of(path: Path) -> dict[str, str]:
    """Of a Compose file: each variable with `:?` and its word, `:-` and its default, or ''."""
    found = _VARIABLE.finditer(path.read_text("utf-8"))
    return {m["name"]: f"{m['kind'] or ''}{m['rest'] or ''}" for m in found if m["name"]}


def read_compose(*paths: Path, env: Mapping[str, str] = ENV) -> dict[str, Any]:
    """The services of a Compose file and its overlays, with their variables filled in."""

    def fill(match: re.Match[str]) -> str:
        if not match["name"]:
            return "$"
        default = match["rest"] if match["kind"] == ":-" else None
        value = env.get(match["name"], default)
        assert value is not None, f"{match['name']}: {match['rest']}"
        return value

    services: dict[str, Any] = {}
    for path in paths:
        read = yaml.safe_load(_VARIABLE.sub(fill, path.read_text("utf-8")))
        services = deep_merge(services, read["services"])
    return services


def deep_merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """As Compose and Helm do it: mappings by name, anything else is replaced."""
    merged = dict(under)
    for name, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = deep_merge(merged[name], value) if both else value
    return merged


def instructions_of(dockerfile: Path) -> list[tuple[str, str]]:
    """Each instruction of a Dockerfile with its arguments on one line."""
    text = re.sub(r"^\s*#.*\n", "", dockerfile.read_text("utf-8"), flags=re.M)
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(line.split()[0], line.split(None, 1)[1]) for line in lines if line.strip()]
