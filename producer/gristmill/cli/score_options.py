"""The options of `gristmill score`, and the task that they ask for."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gristmill.errors import UsageError

if TYPE_CHECKING:
    from gristmill.data.prompts import Prompt
    from gristmill.data.template import Template
    from gristmill.score import Task


class TaskWord(StrEnum):
    loglikelihood = "loglikelihood"
    choices = "choices"
    perplexity = "perplexity"
    judge = "judge"


class RuleName(StrEnum):
    sum = "sum"
    token = "token"
    byte = "byte"


_DATA_HELP = "The rows: .csv, .tsv, .jsonl (also .gz, .zst), .parquet, .arrow, s3://…, - (stdin)."
_OUTPUT_HELP = "Where the rows with their scores go; its name says the format, as that of DATA."
_TASK_HELP = "loglikelihood of a target, choices, perplexity of a text, or judge."
_PROMPT_HELP = "What stands before what is scored, with columns as {column}; @FILE reads it."
_CHAT_HELP = "The prompt is a user's message, or plain text. Default: a message for judge."
_CHOICE_HELP = "One of the texts to choose from; columns as {column}. Repeat it."
_NORMALIZE_HELP = "Choices are compared by log-probability: the sum, or by token or byte."
_ANSWERS_HELP = "judge: what it may answer, as 1-5 or good,fair,bad."
_REASON_HELP = "judge: let the model write a reason of so many characters first."
_GOLD_HELP = "The column with the right answer: its text, or its place from 0."
_TRUNCATE_HELP = "Leave out the beginning of a prompt that is too long, instead of failing its row."
_ID_HELP = "The column that names rows in messages and requests. Default: their place."
_BASE_URL_HELP = "Let this service score, as http://HOST:8000/v1. Default: this machine."

Data = Annotated[str, typer.Argument(metavar="DATA", help=_DATA_HELP)]
Output = Annotated[str, typer.Option("-o", "--output", metavar="OUT", help=_OUTPUT_HELP)]
TaskName = Annotated[TaskWord, typer.Option("--task", help=_TASK_HELP)]
PromptText = Annotated[str | None, typer.Option("--prompt", metavar="TEXT", help=_PROMPT_HELP)]
SystemText = Annotated[
    str | None, typer.Option("--system", metavar="TEXT", help="A system message before it.")
]
IsChat = Annotated[bool | None, typer.Option("--chat/--plain", help=_CHAT_HELP)]
Target = Annotated[
    str | None,
    typer.Option("--target", metavar="TEXT", help="loglikelihood: what is scored, as ' {answer}'."),
]
ChoiceTexts = Annotated[
    list[str] | None, typer.Option("--choice", metavar="TEXT", help=_CHOICE_HELP)
]
ChoicesColumn = Annotated[
    str | None,
    typer.Option("--choices-column", metavar="COLUMN", help="The column with a list of choices."),
]
Normalize = Annotated[RuleName, typer.Option("--normalize", help=_NORMALIZE_HELP)]
RolledText = Annotated[
    str | None, typer.Option("--text", metavar="TEXT", help="perplexity: of what, as '{text}'.")
]
Window = Annotated[
    int | None,
    typer.Option("--window", min=2, metavar="N", help="perplexity: tokens that are read at once."),
]
Stride = Annotated[
    int | None,
    typer.Option("--stride", min=1, metavar="N", help="perplexity: new tokens in each window."),
]
Answers = Annotated[str | None, typer.Option("--answers", metavar="LIST", help=_ANSWERS_HELP)]
ReasonChars = Annotated[int, typer.Option("--reason", min=0, metavar="N", help=_REASON_HELP)]
GoldColumn = Annotated[str | None, typer.Option("--gold", metavar="COLUMN", help=_GOLD_HELP)]
Truncate = Annotated[bool, typer.Option("--truncate", help=_TRUNCATE_HELP)]
IdColumn = Annotated[str | None, typer.Option("--id", metavar="COLUMN", help=_ID_HELP)]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, metavar="N", help="Only the first rows.")
]
Bootstrap = Annotated[
    int, typer.Option("--bootstrap", min=0, metavar="N", help="Samples for the intervals.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Of those samples.")]
BaseUrl = Annotated[str | None, typer.Option("--base-url", metavar="URL", help=_BASE_URL_HELP)]

#: The options that each task needs, and those that it may have.
_FITTING = {
    TaskWord.loglikelihood: (("prompt", "target"), ("system", "truncate")),
    TaskWord.choices: (
        ("prompt",),
        ("choice", "choices-column", "normalize", "gold", "system", "truncate"),
    ),
    TaskWord.perplexity: (("text",), ("window", "stride")),
    TaskWord.judge: (("prompt", "answers"), ("reason", "gold", "system", "truncate")),
}


def task_of(
    word: TaskWord,
    *,
    prompt: str | None,
    system: str | None,
    chat: bool | None,
    target: str | None,
    choices: list[str],
    choices_column: str | None,
    rule: RuleName,
    text: str | None,
    window: int | None,
    stride: int | None,
    answers: str | None,
    reason_chars: int,
    gold: str | None,
    truncate: bool,
) -> Task:
    """Raises UsageError for options that the task lacks or cannot have."""
    given = {
        "prompt": prompt,
        "system": system,
        "target": target,
        "choice": choices,
        "choices-column": choices_column,
        "normalize": None if rule is RuleName.sum else rule,
        "text": text,
        "window": window,
        "stride": stride,
        "answers": answers,
        "reason": reason_chars,
        "gold": gold,
        "truncate": truncate,
    }
    _check_fitting(word, [name for name, value in given.items() if value])
    from gristmill.score import Choices, Gold, Judge, Loglikelihood, Perplexity, Rule
    from gristmill.scores.judge import parse_answers

    if word is TaskWord.perplexity:
        return Perplexity(_template(text), window, stride)
    is_chat = (word is TaskWord.judge or system is not None) if chat is None else chat
    asked = _prompt(prompt, system, chat=is_chat)
    graded = None if gold is None else Gold(gold)
    if word is TaskWord.loglikelihood:
        return Loglikelihood(asked, _template(target), truncate)
    if word is TaskWord.judge:
        return Judge(asked, parse_answers(answers or ""), graded, reason_chars, truncate)
    templates = tuple(_template(choice) for choice in choices)
    return Choices(asked, templates, choices_column, graded, Rule(rule.value), truncate)


def _check_fitting(word: TaskWord, given: list[str]) -> None:
    required, optional = _FITTING[word]
    for name in required:
        if name not in given:
            raise UsageError(f"The task {word.value} needs --{name}. See gristmill score --help.")
    for name in given:
        if name not in (*required, *optional):
            raise UsageError(f"--{name} means nothing to the task {word.value}. Leave it out.")


def _prompt(text: str | None, system: str | None, *, chat: bool) -> Prompt:
    from gristmill.data.prompts import Prompt

    return Prompt(_template(text), None if system is None else _template(system), chat)


def _template(text: str | None) -> Template:
    """Of the text, or of a file where it begins with `@`."""
    from gristmill.data.template import Template

    text = text or ""
    if not text.startswith("@"):
        return Template(text)
    path = Path(text[1:]).expanduser()
    try:
        return Template(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The template file {str(path)!r} cannot be read: {error}.") from error
