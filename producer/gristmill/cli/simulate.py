"""`gristmill simulate`: what a fleet would do with a trace, before the machines are bought."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gristmill.cli import options
from gristmill.cli.failures import failures_reported
from gristmill.cli.output import print_table

_SCENARIO_HELP = (
    "uniform, mixed, deadlines, no-gain, failing, or a JSON file of your own: machines, how many, "
    "and what arrives when."
)
_OUTPUT_HELP = "Folder for a plot of each scenario."


def simulate(
    scenarios: Annotated[list[str], typer.Argument(metavar="SCENARIO...", help=_SCENARIO_HELP)],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FOLDER", help=_OUTPUT_HELP)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    debug: options.Debug = False,
) -> None:
    """Compare a plain queue, one Lane with fair shares, and the Router, on a fleet that is made up.

    Workers are arithmetic; the Router and the shares are those that run. `--json` prints each
    scenario too, as a file to start your own from.
    """
    from gristmill.simulator.report import HEADINGS, compare, rows_of
    from gristmill.simulator.scenario_file import find_scenario, to_document

    with failures_reported(debug=debug):
        found = [find_scenario(name) for name in scenarios]
        documents = []
        for scenario in found:
            outcomes = compare(scenario)
            if output is not None:
                from gristmill.simulator.plots import draw_policies

                output.mkdir(parents=True, exist_ok=True)
                draw_policies(outcomes, output / f"{scenario.name}.png")
            if as_json:
                figures = [asdict(outcome.figures) for outcome in outcomes]
                documents.append({"scenario": to_document(scenario), "figures": figures})
                continue
            typer.echo(f"{scenario.name}: {scenario.trace.about}\n")
            print_table(HEADINGS, rows_of(outcomes))
            typer.echo("")
        if as_json:
            typer.echo(json.dumps(documents, ensure_ascii=False))
