"""How models write calls of tools: told by the chat template, enforced by a grammar, read back.

hermes        <tool_call>\\n{"name": …, "arguments": {…}}\\n</tool_call>     Hermes, Qwen, SmolLM3
llama3_json   {"name": …, "parameters": {…}}; {…}                          Llama 3.1 and later
mistral       [TOOL_CALLS][{"name": …, "arguments": {…}}, {…}]             Mistral
mistral_args  [TOOL_CALLS]name[ARGS]{…}                                    Mistral, since 2025

A template that shows none of them gets hermes, the one that most models have seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, NoReturn

from gristmill.grammar import JSON_OPTIONS, quoted
from gristmill.types import ToolFormat

#: As Python's json.dumps writes them, and so the templates whose output models were trained on.
_ITEM_SEPARATOR, _KEY_SEPARATOR = ", ", ": "
_TEXT = r"/(.|\n)*/"


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call, and the JSON Schema of its arguments."""

    name: str
    parameters: dict[str, Any]
    strict: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`arguments` is a JSON object, as text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class _Shape:
    """begin, call, (separator, call)*, end, where a call is open, head, {json}, tail, close.

    Each but `separator` is pieces, of which a vocabulary may have a token of its own for some.
    """

    begin: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    head: tuple[str, ...] = ('{"name": "NAME", "arguments": ',)
    tail: tuple[str, ...] = ("}",)
    close: tuple[str, ...] = ()
    separator: tuple[str, ...] = ()
    end: tuple[str, ...] = ()

    @property
    def trigger(self) -> str:
        """What tells in the midst of text that calls begin; nothing: only a whole answer can be
        calls."""
        return next(iter((*self.begin, *self.open)), "")

    @property
    def markers(self) -> tuple[str, ...]:
        return tuple(
            piece
            for piece in (*self.begin, *self.open, *self.head, *self.close)
            if piece[0] + piece[-1] in ("<>", "[]") and len(piece) > 1
        )


_SHAPES = {
    ToolFormat.HERMES: _Shape(
        open=("<tool_call>", "\n"), close=("\n", "</tool_call>"), separator=("\n",)
    ),
    ToolFormat.LLAMA3_JSON: _Shape(head=('{"name": "NAME", "parameters": ',), separator=("; ",)),
    ToolFormat.MISTRAL: _Shape(begin=("[TOOL_CALLS]", "["), separator=(", ",), end=("]",)),
    ToolFormat.MISTRAL_ARGS: _Shape(open=("[TOOL_CALLS]",), head=("NAME", "[ARGS]"), tail=()),
}


def format_of(template: str) -> ToolFormat:
    """The format that a chat template shows its model."""
    if "<tool_call>" in template:
        return ToolFormat.HERMES
    if "[TOOL_CALLS]" in template:
        return ToolFormat.MISTRAL_ARGS if "[ARGS]" in template else ToolFormat.MISTRAL
    if "<|python_tag|>" in template or ('"parameters"' in template and "ipython" in template):
        return ToolFormat.LLAMA3_JSON
    return ToolFormat.HERMES


def markers_of(tool_format: ToolFormat) -> tuple[str, ...]:
    """What some vocabularies have a token of its own for."""
    return _SHAPES[tool_format].markers


def calls_grammar(
    tool_format: ToolFormat,
    tools: Sequence[Tool],
    *,
    parallel: bool,
    token_id_of: Callable[[str], int | None],
) -> str:
    """A grammar for llguidance: the answer is calls of `tools` and nothing else; one if not
    `parallel`. `token_id_of` knows the markers that are one token."""
    calls, rules = _calls(tool_format, tools, parallel=parallel, token_id_of=token_id_of)
    return "\n".join((f"start: {calls}", *rules))


def text_or_calls_grammar(
    tool_format: ToolFormat,
    tools: Sequence[Tool],
    *,
    parallel: bool,
    token_id_of: Callable[[str], int | None],
) -> str:
    """As calls_grammar, where the answer may also be text, or calls after text."""
    calls, rules = _calls(tool_format, tools, parallel=parallel, token_id_of=token_id_of)
    trigger = _SHAPES[tool_format].trigger
    if not trigger:
        start = rf"start: {calls} | /([^{{](.|\n)*)?/"
    elif token_id_of(trigger) is not None:
        start = f"start: TEXT | TEXT {calls}"
    else:  # the text ends where the marker does
        start = f"start: TEXT | text_to_marker {calls.removeprefix(quoted(trigger))}"
        rules.append(f"text_to_marker[lazy]: TEXT {quoted(trigger)}")
    return "\n".join((start, f"TEXT: {_TEXT}", *rules))


def _calls(
    tool_format: ToolFormat,
    tools: Sequence[Tool],
    *,
    parallel: bool,
    token_id_of: Callable[[str], int | None],
) -> tuple[str, list[str]]:
    """What stands for all calls in a rule, and the rules of a call."""
    shape = _SHAPES[tool_format]

    def written(*pieces: str) -> str:
        ids = [token_id_of(piece) if piece in shape.markers else None for piece in pieces]
        return " ".join(
            quoted(piece) if token_id is None else f"<[{token_id}]>"
            for piece, token_id in zip(pieces, ids, strict=True)
        )

    more = f"({written(*shape.separator, *shape.open)} call)*" if parallel else ""
    calls = " ".join(
        (written(*shape.begin, *shape.open), "call", more, written(*shape.end))
    ).strip()
    rules = [f"call: {' | '.join(f'call_{i}' for i in range(len(tools)))}"]
    for i, tool in enumerate(tools):
        head = written(*(piece.replace("NAME", tool.name) for piece in shape.head))
        tail = written(*shape.tail, *shape.close)
        rules.append(f"call_{i}: {head} %json {_arguments_schema(tool.parameters)} {tail}".strip())
    return calls, rules


def _arguments_schema(parameters: dict[str, Any]) -> str:
    options = {
        **JSON_OPTIONS,
        "item_separator": _ITEM_SEPARATOR,
        "key_separator": _KEY_SEPARATOR,
    }
    return json.dumps({**parameters, "x-guidance": options}, ensure_ascii=False)


def read_calls(
    tool_format: ToolFormat, text: str, names: Collection[str]
) -> tuple[str, list[ToolCall]]:
    """The calls of tools that are among `names`, and the text that is none of them.

    Lenient: whatever is no such call stays in the text, so that nothing that was written is lost.
    """
    read = _READERS[tool_format]
    trigger = _SHAPES[tool_format].trigger
    calls: list[ToolCall] = []
    rest: list[str] = []
    at = begin = 0
    while (begin := text.find(trigger, begin)) >= 0:
        end, found = read(text, begin + len(trigger))
        if found and all(call.name in names for call in found):
            rest.append(text[at:begin])
            calls += found
            at = begin = end
        else:
            begin += max(1, len(trigger))
        if not trigger:
            break
    rest.append(text[at:])
    if not calls:
        return text, []
    return "\n".join(part for part in map(str.strip, rest) if part), calls


# Each reads the calls behind a trigger that ends at `at`: where they end, and which; none if what
# stands there is something else.


def _read_hermes(text: str, at: int) -> tuple[int, list[ToolCall]]:
    document, end = _json_at(text, at)
    call, end = _call(document), _skip_blank(text, end)
    if call is None or not (end == len(text) or text.startswith("</tool_call>", end)):
        return at, []
    return min(end + len("</tool_call>"), len(text)), [call]


def _read_mistral(text: str, at: int) -> tuple[int, list[ToolCall]]:
    document, end = _json_at(text, at)
    calls = [_call(part) for part in document] if isinstance(document, list) else []
    return end, [] if None in calls else [call for call in calls if call]


def _read_mistral_args(text: str, at: int) -> tuple[int, list[ToolCall]]:
    name, found, _ = text[at:].partition("[ARGS]")
    if not found or len(name) > 100:
        return at, []
    arguments, end = _json_at(text, at + len(name) + len("[ARGS]"))
    call = _call({"name": name.strip(), "arguments": arguments})
    return end, [] if call is None else [call]


def _read_llama3_json(text: str, at: int) -> tuple[int, list[ToolCall]]:
    """The whole answer, or nothing: an object within text may be anything."""
    at = _skip_blank(text, at)
    at += len("<|python_tag|>") if text.startswith("<|python_tag|>", at) else 0
    calls = []
    while True:
        document, at = _json_at(text, at)
        call = _call(document)
        if call is None:
            return 0, []
        calls.append(call)
        at = _skip_blank(text, at)
        if at == len(text):
            return at, calls
        if text[at] != ";":
            return 0, []
        at += 1


_READERS: dict[ToolFormat, Callable[[str, int], tuple[int, list[ToolCall]]]] = {
    ToolFormat.HERMES: _read_hermes,
    ToolFormat.LLAMA3_JSON: _read_llama3_json,
    ToolFormat.MISTRAL: _read_mistral,
    ToolFormat.MISTRAL_ARGS: _read_mistral_args,
}


def _call(document: Any) -> ToolCall | None:
    """Nothing else may stand in the object, since it would be lost."""
    if not isinstance(document, dict) or not isinstance(document.get("name"), str):
        return None
    others = document.keys() - {"name"}
    if len(others) > 1 or not others <= {"arguments", "parameters"}:
        return None
    arguments = document[others.pop()] if others else {}
    if not isinstance(arguments, dict):
        return None
    text = json.dumps(arguments, ensure_ascii=False)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:  # half a surrogate pair, which JSON can only have as an escape
            text = json.dumps(arguments)
    return ToolCall(document["name"], text)


def _json_at(text: str, at: int) -> tuple[Any, int]:
    """The JSON document that begins behind blanks, and its end; None where there is none."""
    try:
        document, end = _DECODER.raw_decode(text, _skip_blank(text, at))
    except (ValueError, RecursionError):
        return None, at
    return document, end


def _skip_blank(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if isfinite(number) else _no_constant(digits)


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)
