"""The options of `gristmill run`, each a type with its name, help and bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_MODEL_HELP = "A folder, a .gguf file, a hub id, or the demo model smollm2-135m."
_ADAPTER_HELP = "A LoRA adapter as PEFT saves it, asked for as the model NAME. May be repeated."
_ERRORS_HELP = "Where failed rows go. Default: OUT.errors.jsonl beside OUT.jsonl."
_WORK_DIR_HELP = "What a run needs to go on later. Default: OUT.jsonl.work."
_DRY_RUN_HELP = "Check every line and count tokens; run nothing."
_SERVED_HELP = "One more value of `model` that lines may carry. May be repeated."
_FLUSH_HELP = "Time between two writes of results, as 500ms, 2s or 5m."

_QUEUE_HELP = "redis://HOST:6379/0, rediss://… or sqs://PREFIX."
_STORE_HELP = "A folder that all share, or s3://BUCKET/PREFIX."

InputPath = Annotated[Path, typer.Argument(metavar="IN.jsonl", help="The requests.")]
OutputPath = Annotated[
    Path, typer.Option("-o", "--output", metavar="OUT.jsonl", help="Where the answers go.")
]
Model = Annotated[str, typer.Option("--model", metavar="MODEL", help=_MODEL_HELP)]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", metavar="MODEL", help=f"{_MODEL_HELP} May be repeated."),
]
Adapters = Annotated[
    list[str] | None, typer.Option("--adapter", metavar="NAME=FOLDER", help=_ADAPTER_HELP)
]
ErrorsPath = Annotated[Path | None, typer.Option("--errors", metavar="FILE", help=_ERRORS_HELP)]
WorkDir = Annotated[Path | None, typer.Option("--work-dir", metavar="DIR", help=_WORK_DIR_HELP)]
KeepWork = Annotated[
    bool, typer.Option("--keep-work", help="Keep the work folder when all is done.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help=_DRY_RUN_HELP)]
Revision = Annotated[
    str | None, typer.Option("--revision", metavar="REV", help="The revision of a hub model.")
]
ServedModelNames = Annotated[
    list[str] | None, typer.Option("--served-model-name", metavar="NAME", help=_SERVED_HELP)
]
MaxNumSeqs = Annotated[
    int | None,
    typer.Option("--max-num-seqs", min=1, metavar="N", help="Most Sequences in one step."),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option("--max-model-len", min=1, metavar="N", help="Longest prompt plus output, tokens."),
]
FlushInterval = Annotated[
    str | None, typer.Option("--flush-interval", metavar="TIME", help=_FLUSH_HELP)
]
QueueUrl = Annotated[
    str, typer.Option("--queue", metavar="URL", envvar="GRISTMILL_QUEUE", help=_QUEUE_HELP)
]
StoreUrl = Annotated[
    str, typer.Option("--store", metavar="URL", envvar="GRISTMILL_STORE", help=_STORE_HELP)
]
RunQueueUrl = Annotated[
    str | None, typer.Option("--queue", metavar="URL", help=f"{_QUEUE_HELP} Needs --store.")
]
RunStoreUrl = Annotated[
    str | None, typer.Option("--store", metavar="URL", help=f"{_STORE_HELP} Needs --queue.")
]
HealthAddress = Annotated[
    str,
    typer.Option(
        "--health",
        metavar="HOST:PORT",
        help="Where GET /livez and /readyz are answered; port 0 is any free one, off is nowhere.",
    ),
]
Host = Annotated[str, typer.Option("--host", metavar="HOST", help="Where the API listens.")]
Port = Annotated[
    int, typer.Option("--port", min=0, max=65535, metavar="PORT", help="0 is any free one.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as one JSON document.")]
Quiet = Annotated[
    bool, typer.Option("-q", "--quiet", help="No progress and no summary, only errors.")
]
NoProgress = Annotated[
    bool,
    typer.Option("--no-progress", envvar="GRISTMILL_NO_PROGRESS", help="Show no progress."),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
