"""The chart as Helm renders it, for one value or another, and what it refuses with which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from places import RULES, deep_merge, read_yaml
from refused import REFUSED
from rendered import LEAST, package, render, render_error

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
BY_REDIS = {"trigger": "redis", "redis": {"address": "queue:6379"}}
BY_SQS = {
    "trigger": "sqs",
    "sqs": {"queueUrl": "https://sqs.eu-central-1.amazonaws.com/1/mill-bulk"},
}


def test_settings_of_a_component_win_and_large_numbers_stay_whole() -> None:
    values = {
        "settings": {"GRISTMILL_MAX_FILE_BYTES": 8589934592, "GRISTMILL_LEASE_S": 90.5},
        "api": {"settings": {"GRISTMILL_LEASE_S": 60, "GRISTMILL_DRAFTS": False}},
        "environment": {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"},
    }
    pods = render(deep_merge(LEAST, values)).pods
    environ = {
        component: {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
        for component, pod in pods.items()
    }

    assert environ["api"]["GRISTMILL_MAX_FILE_BYTES"] == "8589934592"
    assert environ["api"]["GRISTMILL_LEASE_S"] == "60"
    assert environ["api"]["GRISTMILL_DRAFTS"] == "false"
    assert environ["worker"]["GRISTMILL_LEASE_S"] == "90.5"
    assert environ["worker"]["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4318"


def test_a_second_model_is_a_release_of_workers_and_control() -> None:
    values = {"api": {"enabled": False}, "control": {"migrate": False}}
    manifests = render(deep_merge(LEAST, values))

    assert set(manifests.pods) == {"control", "worker"}
    assert not manifests.of("Service") and not manifests.of("Job")
    assert len(manifests.of("NetworkPolicy")) == 2


def test_a_second_kind_of_machine_is_a_release_of_workers_that_counts_its_own_lanes() -> None:
    off = {"enabled": False}
    scaling = {"minReplicas": 1, "prometheus": {"lanes": "pool-32k-.*"}}
    worker = {"scaling": scaling, "settings": {"GRISTMILL_LANES": "pool"}}
    manifests = render(deep_merge(LEAST, {"api": off, "control": off, "worker": worker}))
    (scaled,) = manifests.of("ScaledObject")

    assert set(manifests.pods) == {"worker"}
    assert 'lane=~"pool-32k-.*"' in scaled["spec"]["triggers"][0]["metadata"]["query"]


def test_workers_are_counted_by_a_prometheus_that_finds_the_pods_by_itself() -> None:
    monitoring = {"podMonitor": {"enabled": False}, "scrapedOtherwise": True}
    manifests = render(deep_merge(LEAST, {"monitoring": monitoring}))

    assert manifests.of("ScaledObject") and not manifests.of("PodMonitor")


def test_a_policy_names_no_redis_where_there_is_none() -> None:
    values = {
        "queue": {"url": "sqs://mill?region=eu-central-1"},
        "broker": {"enabled": False},
        "networkPolicy": {"queue": {"to": []}, "broker": {"to": []}},
    }
    policies = render(deep_merge(LEAST, values)).of("NetworkPolicy")
    ports = {
        port["port"] for doc in policies for rule in doc["spec"]["egress"] for port in rule["ports"]
    }

    assert 6379 not in ports


def test_an_image_may_be_named_by_its_digest() -> None:
    digest = "sha256:" + "0" * 64
    image = {"image": {"worker": {"repository": "r/w", "tag": "t", "digest": digest}}}
    (container,) = render(deep_merge(LEAST, image)).pods["worker"]["spec"]["containers"]

    assert container["image"] == f"r/w@{digest}"


def test_the_archive_of_the_chart_has_the_rules_with_it(tmp_path: Path) -> None:
    values = deep_merge(LEAST, {"monitoring": {"prometheusRule": {"enabled": True}}})
    (ours,) = render(values).of("PrometheusRule")
    (packed,) = render(values, package(tmp_path)).of("PrometheusRule")

    groups = [group for path in reversed(RULES) for group in read_yaml(path)["groups"]]
    assert ours == packed
    assert packed["spec"]["groups"] == groups


@pytest.mark.parametrize(("values", "place"), REFUSED)
def test_helm_refuses_what_the_schema_refuses(values: dict[str, Any], place: str) -> None:
    error = render_error(values)

    assert "values don't meet the specifications of the schema" in error
    assert place.split(".")[-1] in error


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model": {"path": ""}}, "model.path: the folder of the model"),
        ({"store": {"url": ""}}, "store.url: where files and results lie"),
        ({"worker": {"kind": "job", "scaling": {"trigger": "none"}}}, "which KEDA starts"),
        ({"worker": {"scaling": {"trigger": "redis"}}}, "worker.scaling.redis.address"),
        ({"worker": {"scaling": {"trigger": "sqs"}}}, "worker.scaling.sqs.queueUrl"),
        ({"api": {"ingress": {"enabled": True}}}, "api.ingress.host"),
        ({"worker": {"scaling": {"prometheus": {"lanes": "pool-32k-.*"}}}}, "leaves out bulk"),
        ({"monitoring": {"podMonitor": {"enabled": False}}}, "monitoring.scrapedOtherwise"),
        ({"worker": {"scaling": {"minReplicas": 9}}}, "minReplicas is 9 and maxReplicas 8"),
        (
            {"queue": {"url": "sqs://mill"}, "worker": {"scaling": BY_REDIS}},
            "Set the trigger to sqs, or to prometheus",
        ),
        (
            {
                "queue": {"url": "redis://q:6379"},
                "aws": {"region": "eu-central-1"},
                "worker": {"scaling": BY_SQS},
            },
            "Set the trigger to redis, or to prometheus",
        ),
        ({"api": {"minAvailable": 2}}, "api.minAvailable is 2 of 2 replicas"),
        ({"control": {"minAvailable": "100%"}}, "no node with one of them could ever be drained"),
        ({"control": {"minAvailable": "51%"}}, "control.minAvailable is 51% of 2 replicas"),
        ({"networkPolicy": {"ledger": {"to": []}}}, "networkPolicy.ledger.to is empty"),
        ({"networkPolicy": {"queue": {"to": []}}}, "networkPolicy.queue.to is empty"),
        ({"networkPolicy": {"broker": {"to": []}}}, "networkPolicy.broker.to is empty"),
    ],
)
def test_what_is_missing_is_named(values: dict[str, Any], words: str) -> None:
    assert words in render_error(values)
