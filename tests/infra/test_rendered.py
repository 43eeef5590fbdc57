"""The chart as Helm renders it, for each example: what Kubernetes, KEDA and our commands take."""

from __future__ import annotations

from pathlib import Path

import jsonschema_rs
import pytest
from calls import check_call, known_variables
from expressions import selectors_of
from places import EXAMPLES, read_json, read_yaml
from rendered import CUSTOM, KUBERNETES, Manifests, lint, render

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SCHEMA = read_json(Path(__file__).parent / "schemas/custom_resources.json")


@pytest.fixture(scope="module", params=EXAMPLES, ids=lambda path: path.stem)
def example(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.fixture(scope="module")
def manifests(example: Path) -> Manifests:
    return render(read_yaml(example))


def test_helm_lints_the_chart(example: Path) -> None:
    assert lint(read_yaml(example)) == []


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_takes_every_object(manifests: Manifests, version: str) -> None:
    kubernetes_validate = pytest.importorskip(
        "kubernetes_validate", reason="needs kubernetes-validate (make infra-check installs it)"
    )
    checked = [doc for doc in manifests.all if doc["apiVersion"].partition("/")[0] not in CUSTOM]

    assert len(checked) >= 6
    for doc in checked:
        kubernetes_validate.validate(doc, version, strict=True)


def test_keda_and_the_prometheus_operator_take_theirs(manifests: Manifests, example: Path) -> None:
    validator = jsonschema_rs.validator_for(SCHEMA)
    kinds = set()
    for doc in manifests.all:
        if doc["apiVersion"].partition("/")[0] in CUSTOM:
            validator.validate(doc)
            kinds.add(doc["kind"])

    assert (
        kinds
        == {
            "aws": {"ScaledObject", "PodMonitor", "PrometheusRule"},
            "redis": {"ScaledObject", "TriggerAuthentication"},
            "jobs": {"ScaledJob", "TriggerAuthentication"},
            "cpu": set(),
        }[example.stem]
    )


def test_a_job_of_a_scaled_job_is_one_that_kubernetes_takes(
    manifests: Manifests, example: Path
) -> None:
    kubernetes_validate = pytest.importorskip(
        "kubernetes_validate", reason="needs kubernetes-validate (make infra-check installs it)"
    )
    scaled = manifests.of("ScaledJob")

    assert len(scaled) == (1 if example.stem == "jobs" else 0)
    for doc in scaled:
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "one"}}
        for version in KUBERNETES:
            kubernetes_validate.validate(
                {**job, "spec": doc["spec"]["jobTargetRef"]}, version, strict=True
            )


def test_every_container_runs_a_command_that_exists(manifests: Manifests) -> None:
    for component, pod in manifests.pods.items():
        (container,) = pod["spec"]["containers"]
        environ = {one["name"]: one.get("value", "") for one in container["env"]}
        for one in container["env"]:
            if "valueFrom" in one:
                environ[one["name"]] = "0123456789abcdef"

        check_call(container["args"], environ)

        assert "command" not in container, "the image's entrypoint"
        assert container["args"][0] == {"migrate": "ledger"}.get(component, component)
        ours = {name for name in environ if name.startswith("GRISTMILL_")}
        assert ours and ours <= known_variables()
        assert len(environ) == len(container["env"]), "no variable twice"


def test_passwords_are_named_and_not_written(manifests: Manifests) -> None:
    for pod in manifests.pods.values():
        for one in pod["spec"]["containers"][0]["env"]:
            if one["name"] in ("GRISTMILL_LEDGER", "GRISTMILL_KEY_PEPPER") or (
                one["name"].startswith("AWS_") and one["name"] != "AWS_DEFAULT_REGION"
            ):
                assert set(one["valueFrom"]) == {"secretKeyRef"}
            assert "@" not in one.get("value", "")
    assert not manifests.of("Secret")


def test_a_worker_is_told_of_the_queue_and_the_store_alone(manifests: Manifests) -> None:
    names = {one["name"] for one in manifests.pods["worker"]["spec"]["containers"][0]["env"]}

    assert {"GRISTMILL_QUEUE", "GRISTMILL_STORE"} <= names
    assert not {"GRISTMILL_LEDGER", "GRISTMILL_BROKER", "GRISTMILL_KEY_PEPPER"} & names


def test_a_worker_reaches_the_queue_and_the_store_and_never_the_database(
    manifests: Manifests, example: Path
) -> None:
    if example.stem == "cpu":
        assert not manifests.of("NetworkPolicy"), "they are switched off there"
        return
    policies = {
        doc["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]: doc["spec"]
        for doc in manifests.of("NetworkPolicy")
    }
    ports = {
        name: {port["port"] for rule in spec["egress"] for port in rule["ports"]}
        for name, spec in policies.items()
    }

    assert set(policies) == {"api", "control", "worker", "migrate"}
    assert all(spec["policyTypes"] == ["Ingress", "Egress"] for spec in policies.values())
    assert all(rule["to"] for spec in policies.values() for rule in spec["egress"])
    assert 5432 in ports["api"] & ports["control"] & ports["migrate"]
    assert 5432 not in ports["worker"]
    assert ports["migrate"] == {53, 5432} and policies["migrate"]["ingress"] == []
    assert (6379 in ports["worker"]) == (example.stem == "redis")
    inbound = {port["port"] for rule in policies["api"]["ingress"] for port in rule["ports"]}
    assert inbound == {8000, 8001}
    for name, pod in manifests.pods.items():
        labels = pod["metadata"]["labels"]
        wanted = policies[name]["podSelector"]["matchLabels"]
        assert wanted.items() <= labels.items()


def test_pods_are_restricted(manifests: Manifests) -> None:
    """Pod Security Standards, level `restricted`, and a root file system that cannot be written."""
    for pod in manifests.pods.values():
        spec = pod["spec"]
        (container,) = spec["containers"]
        own = container["securityContext"]

        assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert own["allowPrivilegeEscalation"] is False and own["readOnlyRootFilesystem"] is True
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert spec["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]
        assert container["resources"]["requests"] and container["resources"]["limits"]
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in spec["volumes"]}


def test_probes_ask_routes_that_are_answered(manifests: Manifests) -> None:
    from health_routes import API_ROUTES, PROCESS_ROUTES

    for component in ("api", "control", "worker"):
        (container,) = manifests.pods[component]["spec"]["containers"]
        routes = API_ROUTES if component == "api" else PROCESS_ROUTES
        ports = {port["name"] for port in container["ports"]}
        probes = {
            name: container[f"{name}Probe"]["httpGet"]
            for name in ("startup", "liveness", "readiness")
        }

        assert {probe["path"] for probe in probes.values()} <= routes
        assert {probe["port"] for probe in probes.values()} <= ports
        assert probes["readiness"]["path"] == "/readyz" != probes["liveness"]["path"]
        assert "startupProbe" in container


def test_a_worker_has_time_to_drain(manifests: Manifests) -> None:
    spec = manifests.pods["worker"]["spec"]
    environ = {one["name"]: one.get("value") for one in spec["containers"][0]["env"]}

    drain_s = int(environ["GRISTMILL_DRAIN_GRACE_S"])

    assert spec["terminationGracePeriodSeconds"] == drain_s + 15
    # It begins before SIGTERM comes, and takes nothing of that time.
    hook = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert hook == ["sh", "-c", "kill -USR1 1"]
    api = manifests.pods["api"]["spec"]
    sleeps_s = api["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    # And what is under way is given as long as a worker gets (GRISTMILL_DRAIN_GRACE_S).
    assert api["terminationGracePeriodSeconds"] >= sleeps_s + 30


def test_control_and_workers_agree_on_model_and_dtype(manifests: Manifests) -> None:
    told = set()
    for component in ("control", "worker"):
        (container,) = manifests.pods[component]["spec"]["containers"]
        args = container["args"]
        environ = {one["name"]: one.get("value") for one in container["env"]}
        told.add((args[args.index("--model") + 1], environ["GRISTMILL_DTYPE"]))

    assert len(told) == 1


def test_gpus_are_asked_for_where_there_are_some(manifests: Manifests, example: Path) -> None:
    (container,) = manifests.pods["worker"]["spec"]["containers"]
    environ = {one["name"]: one.get("value") for one in container["env"]}
    has_gpu = example.stem != "cpu"

    assert container["resources"]["limits"].get("nvidia.com/gpu") == (1 if has_gpu else None)
    assert environ.get("GRISTMILL_DEVICE") == ("cuda" if has_gpu else None)
    assert bool(manifests.pods["worker"]["spec"].get("tolerations")) == has_gpu


def test_what_is_named_is_there(manifests: Manifests) -> None:
    accounts = {doc["metadata"]["name"] for doc in manifests.of("ServiceAccount")}
    deployments = {doc["metadata"]["name"]: doc for doc in manifests.of("Deployment")}

    for component in ("api", "control", "worker"):
        assert manifests.pods[component]["spec"]["serviceAccountName"] in accounts
    for doc in deployments.values():
        labels = doc["spec"]["template"]["metadata"]["labels"]
        assert doc["spec"]["selector"]["matchLabels"].items() <= labels.items()
    for doc in manifests.of("ScaledObject"):
        target = deployments[doc["spec"]["scaleTargetRef"]["name"]]
        assert "replicas" not in target["spec"], "KEDA's alone"
    for doc in manifests.of("PodDisruptionBudget"):
        wanted = doc["spec"]["selector"]["matchLabels"]
        assert any(
            wanted.items() <= one["spec"]["template"]["metadata"]["labels"].items()
            for one in deployments.values()
        )
    for doc in [*manifests.of("ScaledObject"), *manifests.of("ScaledJob")]:
        for trigger in doc["spec"]["triggers"]:
            asked = trigger.get("authenticationRef", {}).get("name")
            there = {one["metadata"]["name"] for one in manifests.of("TriggerAuthentication")}
            assert asked is None or asked in there


def test_the_fleet_scales_to_zero_by_the_backlog(manifests: Manifests, example: Path) -> None:
    scaled = [*manifests.of("ScaledObject"), *manifests.of("ScaledJob")]
    if example.stem == "cpu":
        assert not scaled
        return
    (doc,) = scaled
    (trigger,) = doc["spec"]["triggers"]

    assert doc["spec"]["minReplicaCount"] == 0
    if example.stem == "aws":
        first, _ = selectors_of(trigger["metadata"]["query"])
        assert first.name == "gristmill_backlog_worker_seconds"
        assert first.matchers == (("model", "my-model"), ("lane", ".*"))
    if example.stem == "redis":
        from gristmill.queues.base import BULK_LANE

        assert trigger["metadata"]["stream"] == f"{{gristmill}}:{BULK_LANE}:messages"
        assert "consumerGroup" not in trigger["metadata"], "it would count what nobody holds only"
    if example.stem == "jobs":
        args = manifests.pods["worker"]["spec"]["containers"][0]["args"]
        assert args[-2:] == ["--idle-exit", "2m"]


def test_the_tables_are_made_before_anybody_opens_them(manifests: Manifests) -> None:
    (job,) = manifests.of("Job")

    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert job["spec"]["template"]["spec"]["containers"][0]["args"] == ["ledger", "migrate"]
