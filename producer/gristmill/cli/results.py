"""`gristmill results`: the rows of a batch, to a file or to stdout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from gristmill.cli import options
from gristmill.cli.service import BaseUrl, BatchIds, Profile, service

_OUT_HELP = "Its name says the format: .jsonl (.gz, .zst), .csv, .parquet. Default: JSON lines."
Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="OUT", help=_OUT_HELP)]
Join = Annotated[
    str | None,
    typer.Option("--join", metavar="INPUT", help="Put each result behind its row of this file."),
]
IdColumn = Annotated[
    str | None, typer.Option("--id-column", metavar="NAME", help="Where INPUT has the row's id.")
]
AsTheyCome = Annotated[
    bool, typer.Option("--as-they-come", help="Do not wait for the end; the order is any.")
]
After = Annotated[
    str | None,
    typer.Option("--after", metavar="CURSOR", help="Go on behind the row with this `cursor`."),
]


def results(
    batch_ids: BatchIds,
    output: Output = None,
    join: Join = None,
    id_column: IdColumn = None,
    as_they_come: AsTheyCome = False,
    after: After = None,
    base_url: BaseUrl = None,
    profile: Profile = None,
    debug: options.Debug = False,
) -> None:
    """Every row of a batch, answers and failures, in the order of its input.

    It waits for the end of the batch. A download with -o that broke off goes on when the same
    command is started again.
    """
    with service(base_url, profile, debug=debug) as client:
        from gristmill.errors import UsageError

        handle = client.handle(*batch_ids)
        if output is not None:
            if as_they_come or after is not None:
                raise UsageError("--as-they-come and --after are for rows on stdout.")
            num_rows = handle.download(output, join=join, id_column=id_column)
            typer.echo(f"{num_rows:,} rows in {output}", err=True)
            return
        if join is not None:
            raise UsageError("--join needs a file for the rows: -o OUT.")
        for row in handle.results(ordered=not as_they_come, after=after):
            shown = {"cursor": row.cursor, **row.line} if as_they_come else row.line
            typer.echo(json.dumps(shown, ensure_ascii=False))
