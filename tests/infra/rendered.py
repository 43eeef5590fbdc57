"""Renders the chart with Helm itself, and sorts what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import yaml
from places import CHART, deep_merge

#: Whose schemas are asked: the oldest version that the chart is for, and new ones.
KUBERNETES = ("1.30", "1.35", "1.37")
#: Groups that Kubernetes itself does not know.
CUSTOM = ("keda.sh", "monitoring.coreos.com")
#: What every set of values needs.
LEAST: dict[str, Any] = {
    "model": {"path": "/models/my-model"},
    "store": {"url": "s3://bucket/fleet"},
    "monitoring": {"podMonitor": {"enabled": True}},
    "networkPolicy": {
        name: {"to": [{"ipBlock": {"cidr": "10.0.0.0/24"}}]}
        for name in ("ledger", "queue", "broker")
    },
}
RELEASE = "mill"


class Manifests:
    def __init__(self, text: str) -> None:
        self.all: list[dict[str, Any]] = [doc for doc in yaml.safe_load_all(text) if doc]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [doc for doc in self.all if doc["kind"] == kind]

    @cached_property
    def pods(self) -> dict[str, dict[str, Any]]:
        """The template of each component's pod."""
        specs = [doc["spec"] for kind in ("Deployment", "Job") for doc in self.of(kind)]
        specs += [doc["spec"]["jobTargetRef"] for doc in self.of("ScaledJob")]
        return {
            spec["template"]["metadata"]["labels"]["app.kubernetes.io/component"]: spec["template"]
            for spec in specs
        }


def _helm() -> Any:
    return pytest.importorskip(
        "helm_python", reason="needs helm-python-sdk (make infra-check installs it)"
    )


def render(values: Mapping[str, Any], chart: Path = CHART) -> Manifests:
    """Raises what Helm raises."""
    found = _helm().Chart.load(str(chart)).render(dict(values), name=RELEASE)
    texts = [text for path, text in found.items() if path.endswith(".yaml")]
    return Manifests("\n---\n".join(texts))


def package(folder: Path) -> Path:
    """The chart as the archive that is handed out."""
    return Path(_helm().Chart.load(str(CHART)).save(str(folder)))


def render_error(values: Mapping[str, Any]) -> str:
    """What Helm says against values that are else enough."""
    with pytest.raises(_helm().HelmError) as caught:
        render(deep_merge(LEAST, values))
    return str(caught.value)


def lint(values: Mapping[str, Any]) -> list[str]:
    """Warnings and errors."""
    report = _helm().lint(str(CHART), dict(values), strict=True)
    return [
        *report["errors"],
        *(message["error"] for message in report["messages"] if message["severity"] > 1),
    ]
