"""compose.yaml: its commands and settings exist, secrets come from outside, networks part."""

from __future__ import annotations

import re
from typing import Any

import pytest
from calls import check_call, known_variables
from places import (
    COMPOSE,
    DOCKERFILES,
    ENV,
    ENV_EXAMPLE,
    OVERLAYS,
    instructions_of,
    read_compose,
    read_yaml,
    variables_of,
)

SERVICES = read_compose(COMPOSE)
ALL = {
    "plain": SERVICES,
    **{name: read_compose(COMPOSE, path) for name, path in OVERLAYS.items()},
}
OURS = ("migrate", "api", "control", "worker")
THEIRS = sorted({name for services in ALL.values() for name in services} - set(OURS))


def seconds(text: str) -> int:
    return int(text.removesuffix("s"))


@pytest.mark.parametrize("overlay", ALL)
@pytest.mark.parametrize("name", OURS)
def test_each_command_is_one_that_the_command_line_takes(name: str, overlay: str) -> None:
    service = ALL[overlay][name]

    params = check_call(service["command"], service["environment"])

    assert {word for word in service["environment"] if word.startswith("GRISTMILL_")} <= (
        known_variables()
    )
    if name in ("control", "worker"):
        assert (params.get("models") or [params.get("model")]) == ["/models/my-model"]


def test_control_and_workers_are_told_the_same_dtype() -> None:
    for env in (ENV, {**ENV, "DTYPE": "bfloat16"}):
        services = read_compose(COMPOSE, OVERLAYS["gpu"], env=env)

        dtypes = {services[name]["environment"]["GRISTMILL_DTYPE"] for name in OURS[2:]}

        assert dtypes == {env.get("DTYPE", "float32")}


def test_secrets_are_asked_for_and_none_is_committed() -> None:
    example = ENV_EXAMPLE.read_text("utf-8")
    variables = {
        name: kind
        for path in (COMPOSE, *OVERLAYS.values())
        for name, kind in variables_of(path).items()
    }
    asked = {name for name, kind in variables.items() if kind.startswith(":?")}

    assert asked == set(ENV)
    assert re.findall(r"^(\w+)=(.*)$", example, re.M) and {
        name: value for name, value in re.findall(r"^(\w+)=(.*)$", example, re.M)
    } == dict.fromkeys(asked, "")
    defaults = dict(re.findall(r"^# (\w+)=(\S+)", example, re.M))
    assert defaults == {
        name: kind[2:]
        for name, kind in variables_of(COMPOSE).items()
        | variables_of(OVERLAYS["monitoring"]).items()
        if kind.startswith(":-")
    }
    for name, kind in variables.items():
        assert not (re.search("PASSWORD|SECRET|KEY|PEPPER", name) and kind.startswith(":-"))
    for name in asked:
        assert f"write {name}" in variables[name]


def test_a_worker_reaches_the_queue_and_the_store_and_nothing_else_that_counts() -> None:
    def neighbours(name: str) -> set[str]:
        mine = set(SERVICES[name]["networks"])
        return {other for other in SERVICES if mine & set(SERVICES[other]["networks"])} - {name}

    networks = read_yaml(COMPOSE)["networks"]

    assert neighbours("worker") == {"queue", "s3", "control", "api"}
    assert {"postgres", "broker"} <= neighbours("control")
    assert not {"GRISTMILL_LEDGER", "GRISTMILL_BROKER", "GRISTMILL_KEY_PEPPER"} & set(
        SERVICES["worker"]["environment"]
    )
    assert all(networks[name]["internal"] for name in SERVICES["worker"]["networks"])
    for name in ("queue", "broker", "postgres", "s3"):
        assert "ports" not in SERVICES[name]
        assert all(networks[network]["internal"] for network in SERVICES[name]["networks"])


@pytest.mark.parametrize("name", ["queue", "broker"])
def test_redis_keeps_its_messages_and_asks_for_a_password(name: str) -> None:
    command = SERVICES[name]["command"][-1]

    assert command.startswith("exec redis-server ")
    for option in ("--appendonly yes", "--maxmemory-policy noeviction", '--requirepass "$REDIS'):
        assert option in command
    assert SERVICES[name]["volumes"] == [f"{name}:/data"]


@pytest.mark.parametrize("name", OURS)
def test_our_containers_may_do_nothing_that_they_need_not(name: str) -> None:
    service = SERVICES[name]

    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "user" not in service, "the image's, which is not root"


def test_what_needs_something_waits_until_it_is_healthy() -> None:
    has_own = {
        name for name, service in SERVICES.items() if "test" in service.get("healthcheck", {})
    }
    of_image = (
        {"api", "control", "worker"}
        if all("HEALTHCHECK" in dict(instructions_of(path)) for path in DOCKERFILES)
        else set()
    )

    for service in SERVICES.values():
        for needed, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_completed_successfully":
                assert SERVICES[needed]["restart"] == "no"
            else:
                assert how == {"condition": "service_healthy"} and needed in has_own | of_image
    assert set(SERVICES["control"]["depends_on"]) == {"migrate", "queue", "broker", "s3"}
    assert "service_healthy" in str(SERVICES["migrate"]["depends_on"])


def test_a_worker_has_time_to_drain_before_it_is_killed() -> None:
    worker = SERVICES["worker"]

    drain_s = float(worker["environment"]["GRISTMILL_DRAIN_GRACE_S"])

    assert seconds(worker["stop_grace_period"]) >= drain_s + 10


@pytest.mark.parametrize("name", THEIRS)
def test_the_images_of_others_are_pinned(name: str) -> None:
    image = next(services[name]["image"] for services in ALL.values() if name in services)

    assert re.search(r":v?\d+\.\d+(\.\d+)?(-[a-z]+)?(@sha256:[0-9a-f]{64})?$", image), image


def test_prometheus_asks_the_ports_on_which_our_services_tell() -> None:
    config: Any = read_yaml(COMPOSE.parent / "prometheus/prometheus.yaml")
    asked = {
        target["names"][0]: target["port"]
        for job in config["scrape_configs"]
        for target in job["dns_sd_configs"]
    }

    assert asked == {name: port_of(name) for name in OURS[1:]}
    prometheus = ALL["monitoring"]["prometheus"]
    assert all(set(prometheus["networks"]) & set(SERVICES[name]["networks"]) for name in asked)


def port_of(name: str) -> int:
    command = SERVICES[name]["command"]
    return int(command[command.index("--health") + 1].rpartition(":")[2])
