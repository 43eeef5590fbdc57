"""What others' checkers say of infra/: Compose itself, hadolint, yamllint, shellcheck, promtool."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from places import COMPOSE, DASHBOARDS, DOCKERFILES, ENV, INFRA, OVERLAYS, ROOT, RULES
from scaling import SCALING
from tools import assert_clean, find_tool, run_tool

pytestmark = pytest.mark.slow
BY_MAKE = "make infra-check installs it"
COMPOSE_FILES = {"plain": [COMPOSE], **{name: [COMPOSE, path] for name, path in OVERLAYS.items()}}
#: Templates of Helm are no YAML until they are rendered.
YAML = sorted(
    path
    for suffix in ("yaml", "yml")
    for path in INFRA.rglob(f"*.{suffix}")
    if "templates" not in path.parts and ".terraform" not in path.parts
)
SCRIPTS = sorted([ROOT / ".ci/run", *INFRA.rglob("*.sh")])


def compose(files: list[Path], *words: str, env: dict[str, str]) -> list[str | Path]:
    return [
        find_tool("docker-compose", BY_MAKE),
        *(word for path in files for word in ("-f", str(path))),
        *("--env-file", "/dev/null"),
        *words,
    ]


def environ(env: dict[str, str]) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/tmp"), **env}


@pytest.mark.parametrize("kind", COMPOSE_FILES)
def test_compose_takes_the_file(kind: str) -> None:
    command = compose(COMPOSE_FILES[kind], "config", "-q", env=ENV)

    assert_clean(run_tool(command, env=environ(ENV), cwd=INFRA))


@pytest.mark.parametrize("name", ENV)
def test_compose_says_which_variable_is_missing_and_where_it_goes(name: str) -> None:
    env = {other: value for other, value in ENV.items() if other != name}
    files = COMPOSE_FILES["monitoring" if name == "GRAFANA_PASSWORD" else "plain"]

    done = run_tool(compose(files, "config", "-q", env=env), env=environ(env), cwd=INFRA)

    assert done.returncode != 0
    assert f"write {name}" in done.stderr and "infra/.env" in done.stderr


def test_our_reading_of_the_compose_file_is_that_of_compose() -> None:
    import json

    from places import read_compose

    command = compose([COMPOSE], "config", "--format", "json", env=ENV)
    done = run_tool(command, env=environ(ENV), cwd=INFRA)
    assert_clean(done)
    theirs = json.loads(done.stdout)["services"]
    ours = read_compose(COMPOSE)

    for name, service in ours.items():
        # Compose writes a $ for the shell in the container doubled, as it would have to be read.
        command_ = [word.replace("$$", "$") for word in theirs[name].get("command") or []]
        assert service.get("command", []) == command_, name
        assert service.get("environment", {}) == theirs[name].get("environment", {}), name
        assert set(service["networks"]) == set(theirs[name]["networks"])


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_has_nothing_to_say(path: Path) -> None:
    assert_clean(run_tool([find_tool("hadolint", BY_MAKE), path]))


def test_yamllint_has_nothing_to_say() -> None:
    config = INFRA / ".yamllint.yaml"

    assert YAML
    assert_clean(run_tool([find_tool("yamllint", BY_MAKE), "-s", "-c", config, *YAML]))


def test_shellcheck_has_nothing_to_say() -> None:
    assert_clean(run_tool([find_tool("shellcheck", BY_MAKE), *SCRIPTS]))


def test_promtool_takes_rules_and_configuration() -> None:
    promtool = find_tool("promtool", "Debian: prometheus")

    assert_clean(run_tool([promtool, "check", "rules", *RULES]))
    assert_clean(run_tool([promtool, "check", "config", INFRA / "prometheus/prometheus.yaml"]))


def test_each_alert_fires_when_it_should_and_only_then() -> None:
    promtool = find_tool("promtool", "Debian: prometheus")

    assert_clean(run_tool([promtool, "test", "rules", INFRA / "prometheus/tests/alerts.yaml"]))


def test_autoscaling_counts_what_one_worker_would_need_and_zero_only_where_it_is_known(
    tmp_path: Path,
) -> None:
    import yaml

    promtool = find_tool("promtool", "Debian: prometheus")
    read = {"series": 'gristmill_batches{status="in_progress"}', "values": "3x10"}
    alive = {"series": 'gristmill_build_info{process="control"}', "values": "1x10"}

    def backlog(lane: str, instance: str, seconds: int) -> dict[str, str]:
        labels = f'model="m",lane="{lane}",instance="{instance}"'
        series = f"gristmill_backlog_worker_seconds{{{labels}}}"
        return {"series": series, "values": f"{seconds}x10"}

    two_lanes_told_twice = [
        backlog(lane, instance, seconds)
        for lane, seconds in (("bulk", 1000), ("pool-8k", 200))
        for instance in ("a", "b")
    ]
    cases: list[tuple[list[dict[str, str]], list[int]]] = [
        ([alive, read, *two_lanes_told_twice], [1200]),
        ([alive, read], [0]),
        ([alive], []),  # the Ledger is away: nobody knows, and that is not no work
        ([], []),
    ]
    tests = [
        {
            "interval": "1m",
            "input_series": series,
            "promql_expr_test": [
                {
                    "expr": SCALING,
                    "eval_time": "5m",
                    "exp_samples": [{"labels": "{}", "value": value} for value in values],
                }
            ],
        }
        for series, values in cases
    ]
    path = tmp_path / "tests.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [], "tests": tests}))

    assert_clean(run_tool([promtool, "test", "rules", path]))


def test_promtool_takes_each_expression_of_a_dashboard(tmp_path: Path) -> None:
    """Written as recording rules, since this is what it reads."""
    import json
    import re

    import yaml

    promtool = find_tool("promtool", "Debian: prometheus")
    rules = [
        {
            "record": "one:of:them",
            "expr": re.sub(r"\$model", "m", expr).replace("$__rate_interval", "5m"),
            "labels": {"n": str(idx)},
        }
        for idx, expr in enumerate(
            target["expr"]
            for path in DASHBOARDS
            for panel in json.loads(path.read_text("utf-8"))["panels"]
            for target in panel.get("targets", ())
        )
    ]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": rules}]}))

    assert_clean(run_tool([promtool, "check", "rules", path]))
