"""What the body's wishes for its answer mean for this model: a grammar, and calls to look for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gristmill.errors import RowRefused
from gristmill.requests.bodies import ChatBody, CompletionBody
from gristmill.requests.tokenise import Tokeniser
from gristmill.requests.tools import Mode, as_tools
from gristmill.tool_formats import Tool, calls_grammar, markers_of, text_or_calls_grammar
from gristmill.types import Grammar, GrammarKind, SamplingParams, ToolFormat, ToolUse


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What an answer looks like. Most look like nothing in particular."""

    grammar: Grammar | None = None
    tools: ToolUse | None = None
    keeps_special_tokens: bool = False

    def applied_to(self, params: SamplingParams) -> SamplingParams:
        if self == _ANY:
            return params
        skips = params.skip_special_tokens and not self.keeps_special_tokens
        return replace(params, grammar=self.grammar, tools=self.tools, skip_special_tokens=skips)


_ANY = AnswerForm()


def answer_form(body: ChatBody | CompletionBody, tokeniser: Tokeniser) -> AnswerForm:
    """Raises RowRefused for what this model's template, or its tokenizer, does not allow."""
    wish = body.grammar
    if wish is not None:
        tokeniser.grammars.check(wish.grammar, param=wish.param)
    if not isinstance(body, ChatBody) or body.choice.mode is Mode.NONE:
        return AnswerForm(wish.grammar) if wish else _ANY
    tool_format = tokeniser.tool_format
    if tool_format is None:
        raise RowRefused(
            "The chat template of this model takes no tools. Use a model whose template does, set "
            "`tool_choice` to none, or describe the functions in a message and ask for JSON with "
            "`response_format`.",
            param="tools",
            code="unsupported_parameter",
        )
    if wish is not None and body.choice.mode is Mode.AUTO:
        raise RowRefused(
            f"`{wish.param}` and `tools` both say what the answer looks like. Set `tool_choice` to "
            "none or required, or leave one of them out.",
            param=wish.param,
            code="invalid_value",
        )
    return _tool_form(body, tokeniser, tool_format)


def _tool_form(body: ChatBody, tokeniser: Tokeniser, tool_format: ToolFormat) -> AnswerForm:
    names = body.choice.names
    tools = [tool for tool in as_tools(body.tools) if names is None or tool.name in names]
    parallel = body.parallel_tool_calls is not False and not body.choice.once
    markers = markers_of(tool_format)
    text = None
    if body.choice.mode is Mode.REQUIRED:
        text = calls_grammar(
            tool_format, tools, parallel=parallel, token_id_of=tokeniser.added_token_id
        )
    elif not parallel or any(tool.strict for tool in tools):
        loose = [t if t.strict else Tool(t.name, {"type": "object"}) for t in tools]
        text = text_or_calls_grammar(
            tool_format, loose, parallel=parallel, token_id_of=tokeniser.added_token_id
        )
    grammar = None if text is None else Grammar(GrammarKind.LARK, text)
    if grammar is not None:
        tokeniser.grammars.check(grammar, param="tools")
    return AnswerForm(
        grammar,
        ToolUse(tool_format, tuple(tool.name for tool in tools)),
        keeps_special_tokens=any(map(tokeniser.is_special, markers)),
    )
