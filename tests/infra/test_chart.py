"""The chart without Helm: its schema takes what it should, and its templates name what exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from calls import known_variables
from places import CHART, EXAMPLES, RULES, deep_merge, read_json, read_yaml
from refused import REFUSED

VALUES: dict[str, Any] = read_yaml(CHART / "values.yaml")
SCHEMA = read_json(CHART / "values.schema.json")
TEMPLATES = sorted((CHART / "templates").glob("*"))


@pytest.fixture(scope="module")
def validator() -> Any:
    return jsonschema_rs.validator_for(SCHEMA)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_schema_takes_the_defaults_and_each_example(path: Path, validator: Any) -> None:
    values = deep_merge(VALUES, read_yaml(path))

    assert [error.message for error in validator.iter_errors(values)] == []
    assert values["model"]["path"] and values["store"]["url"]


@pytest.mark.parametrize(("values", "place"), REFUSED)
def test_the_schema_refuses_what_would_fail_later(
    values: dict[str, Any], place: str, validator: Any
) -> None:
    errors = list(validator.iter_errors(deep_merge(VALUES, values)))

    assert [".".join(map(str, error.instance_path)) for error in errors] == [place]


def test_the_schema_knows_each_value_that_there_is() -> None:
    def unknown(values: Any, schema: Any, at: str) -> list[str]:
        if "$ref" in schema:
            schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
        if not isinstance(values, dict) or "properties" not in schema:
            return []
        assert schema["additionalProperties"] is False, at
        return [
            *(f"{at}.{name}" for name in values if name not in schema["properties"]),
            *(
                found
                for name, value in values.items()
                for found in unknown(value, schema["properties"].get(name, {}), f"{at}.{name}")
            ),
        ]

    assert unknown(VALUES, SCHEMA, "") == []


def test_templates_and_values_name_only_variables_that_exist() -> None:
    texts = [*TEMPLATES, *EXAMPLES, CHART / "values.yaml", CHART / "values.schema.json"]
    named = {
        name
        for path in texts
        for name in re.findall(r"\bGRISTMILL_[A-Z][A-Z0-9_]*[A-Z0-9]\b", path.read_text("utf-8"))
    }

    assert len(named) > 8
    assert named <= known_variables()


def test_a_value_that_a_template_reads_exists() -> None:
    read = {
        path
        for template in TEMPLATES
        for path in re.findall(r"\.Values\.([A-Za-z.]+[A-Za-z])", template.read_text("utf-8"))
    }

    for path in read:
        found: Any = VALUES
        for name in path.split("."):
            assert name in found, path
            found = found[name]


def test_the_time_to_end_is_longer_than_the_drain() -> None:
    worker = VALUES["worker"]

    assert worker["drainGraceSeconds"] == 30 and worker["terminationMarginSeconds"] >= 10
    template = (CHART / "templates/_worker.tpl").read_text("utf-8")
    assert "terminationGracePeriodSeconds: {{ add $grace $worker.terminationMarginSeconds }}" in (
        template
    )


def test_the_rules_of_the_chart_are_those_of_prometheus() -> None:
    assert [path.read_bytes() for path in sorted((CHART / "files/rules").glob("*.yaml"))] == [
        path.read_bytes() for path in RULES
    ]
