"""infra/README.md names only files, values, options and commands that there are."""

from __future__ import annotations

import re
from typing import Any

from calls import command_names, known_variables
from places import CHART, EXAMPLES, INFRA, ROOT, read_yaml

README = (INFRA / "README.md").read_text("utf-8")
SPANS = re.findall(r"`([^`\n]+)`", README)
VALUES: dict[str, Any] = read_yaml(CHART / "values.yaml")
#: What a person makes himself.
MADE = {"my-values.yaml", "config.json", "tokenizer.json"}


def test_files_and_folders_are_there() -> None:
    blocks = re.findall(r"(?<![\w/.=-])[\w./-]+\.(?:yaml|json|Dockerfile)", README)
    folders = [span for span in SPANS if re.fullmatch(r"[\w./-]+/", span)]
    places = (ROOT, INFRA, CHART, CHART / "examples", INFRA / "grafana/dashboards")

    assert len(blocks) > 10 and len(folders) >= 6
    missing = {
        name
        for name in {*blocks, *folders} - MADE
        if not any(
            (place / name).exists() for place in (*places, INFRA / "docker", INFRA / "prometheus")
        )
    }
    assert missing == set()


def test_values_are_those_of_the_chart() -> None:
    named = [span for span in SPANS if re.fullmatch(r"[a-z]+(\.[a-zA-Z]+)+", span)]
    named = [span for span in named if not span.endswith((".yaml", ".json", ".md", ".Dockerfile"))]

    assert len(named) > 6
    for span in named:
        found: Any = VALUES
        for name in span.split("."):
            assert name in found, span
            found = found[name]


def test_commands_and_settings_are_ours() -> None:
    code = [*SPANS, *re.findall(r"^ *```\n(.*?)^ *```", README, re.M | re.S)]
    shown = {name for text in code for name in re.findall(r"\bgristmill ([a-z]+)\b", text)}

    assert shown and shown <= command_names()
    assert set(re.findall(r"GRISTMILL_[A-Z_]+[A-Z]", README)) <= known_variables() | {
        # Of clients, which have no settings.
        "GRISTMILL_BASE_URL",
        "GRISTMILL_API_KEY",
    }


def test_each_example_is_described() -> None:
    assert {path.name for path in EXAMPLES} <= set(SPANS)
