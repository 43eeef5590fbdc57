"""Every metric, label and word that dashboards, alerts and autoscaling name is in the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from expressions import SAMPLES, grouping_labels_of, labels_of, selectors_of, words_of
from places import DASHBOARDS, INFRA, RULES, read_json, read_yaml
from scaling import SCALING

from gristmill.metrics import METRICS
from gristmill.metrics.of_control import LEDGER_METRICS


def rules() -> Iterator[dict[str, Any]]:
    for path in RULES:
        for group in read_yaml(path)["groups"]:
            yield from group["rules"]


def panels(path: Path) -> list[dict[str, Any]]:
    return [panel for panel in read_json(path)["panels"] if panel["type"] != "row"]


RECORDED = {rule["record"]: rule["expr"] for rule in rules() if "record" in rule}
ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}
SHOWN = {
    f"{path.stem}: {panel['title']} {target['refId']}": target["expr"]
    for path in DASHBOARDS
    for panel in panels(path)
    for target in panel["targets"]
}
EXPRESSIONS = {
    **SHOWN,
    **RECORDED,
    **{name: alert["expr"] for name, alert in ALERTS.items()},
    "KEDA": SCALING,
}


@pytest.mark.parametrize("where", EXPRESSIONS)
def test_an_expression_names_only_what_the_table_of_metrics_has(where: str) -> None:
    expr = EXPRESSIONS[where]
    selectors = list(selectors_of(expr))
    assert selectors, "it asks for something of ours"
    known: set[str] = set()
    for selector in selectors:
        if selector.is_recorded:
            assert selector.name in RECORDED
            known |= grouping_labels_of(RECORDED[selector.name]) - {"le"}
            continue
        assert selector.name in SAMPLES, selector.name
        known |= labels_of(selector.name)
        assert selector.labels <= labels_of(selector.name)
        help = SAMPLES[selector.name].help
        for label, value in selector.matchers:
            if label != "model" and " as in " not in help:
                assert [
                    word for word in words_of(value) if not re.search(rf"\b{word}\b", help)
                ] == []

    assert grouping_labels_of(expr) <= known


def test_every_metric_is_shown_on_a_dashboard() -> None:
    shown = {
        SAMPLES[found.name].name
        for expr in SHOWN.values()
        for found in selectors_of(expr)
        if not found.is_recorded
    }

    assert {metric.name for metric in METRICS} - shown == set()


def test_workers_are_counted_by_the_work_of_one() -> None:
    (asked, read) = selectors_of(SCALING)

    assert asked.name == "gristmill_backlog_worker_seconds"
    # Neither has a value while the Ledger is away: then nobody may take that for no work.
    assert {asked.name, read.name} <= {metric.name for metric in LEDGER_METRICS}


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_is_whole(path: Path) -> None:
    board = read_json(path)
    variables = {variable["name"] for variable in board["templating"]["list"]}
    ids = [panel["id"] for panel in board["panels"]]

    assert len(ids) == len(set(ids))
    assert board["uid"].startswith("gristmill-")
    for panel in panels(path):
        assert panel["description"] and panel["fieldConfig"]["defaults"]["unit"]
        for target in panel["targets"]:
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert used <= variables
            labels = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert labels <= grouping_labels_of(target["expr"]) | grouping_labels_of(
                RECORDED.get(target["expr"], "")
            )
    places = [panel["gridPos"] for panel in board["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)), "panels lie over one another"
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(
                r"label_values\((\w+), (\w+)\)", variable["query"]
            ).groups()  # type: ignore[union-attr]
            assert label in labels_of(metric)


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_what_to_do(name: str) -> None:
    alert = ALERTS[name]
    notes = alert["annotations"]

    assert alert["labels"]["severity"] in ("warning", "critical")
    assert set(notes) == {"summary", "description", "runbook"}
    assert re.findall(r"^(\d)\. ", notes["runbook"], re.M)[:2] == ["1", "2"]
    shown = set(re.findall(r"\$labels\.(\w+)", f"{notes}"))
    assert shown <= grouping_labels_of(alert["expr"]) | labels_of(
        next(selectors_of(alert["expr"])).name
    )


def test_every_alert_fires_in_a_test() -> None:
    tests = (INFRA / "prometheus/tests/alerts.yaml").read_text("utf-8")

    fired = set(
        re.findall(r'exp_samples.*?alertname="(\w+)"|- {labels: .{alertname="(\w+)"', tests)
    )
    assert {name for pair in fired for name in pair if name} == set(ALERTS)


def test_runbooks_name_settings_and_commands_that_exist() -> None:
    from calls import known_variables

    named = {
        name
        for path in (*DASHBOARDS, *RULES)
        for name in re.findall(r"\bGRISTMILL_[A-Z_]+[A-Z]\b", path.read_text("utf-8"))
    }

    assert named and named <= known_variables()
