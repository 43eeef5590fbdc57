"""Renders conversations with a model's chat template: the text that transformers makes of them.

`apply_chat_template` copies what it is given several times, in case it is no plain JSON, before it
comes to the template. Most conversations go to the compiled template at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from inspect import signature
from typing import TYPE_CHECKING, Any

from gristmill.requests.chat_template import ChatOptions, variables_of
from gristmill.tool_formats import format_of
from gristmill.types import ToolFormat

if TYPE_CHECKING:
    from gristmill.requests.messages import Message

#: What a message may say for transformers to give it to the template as it is.
_AS_IT_IS = frozenset({"role", "content", "name", "tool_calls", "tool_call_id"})


class ChatRenderer:
    """The chat template of one tokenizer of transformers, which must not be changed afterwards.

    Immutable, so threads may share it. A template is a program of the model's author: what it
    raises, and so what the methods here raise, is in `errors`, and concerns the row at hand.
    """

    def __init__(self, tokenizer: Any) -> None:
        from jinja2 import TemplateError

        self.errors: tuple[type[Exception], ...] = (
            TemplateError,
            ArithmeticError,
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        )
        self._tokenizer = tokenizer
        self._special_tokens: dict[str, str] = tokenizer.special_tokens_map
        self._compile = _compiler_of(tokenizer)
        #: By whether there are tools: a model may have one more template for those.
        self._compiled: dict[bool, _Compiled] = {}

    @cached_property
    def variables(self) -> frozenset[str]:
        """What the template looks up and a caller may set."""
        from transformers.utils.chat_template_utils import render_jinja_template

        # What has a meaning of its own to transformers never reaches the template.
        taken = {
            *signature(self._tokenizer.apply_chat_template).parameters,
            *signature(render_jinja_template).parameters,
        }
        taken -= {"add_generation_prompt"}
        template = self._tokenizer.get_chat_template()
        return variables_of(template, given={*self._special_tokens, *taken})

    @cached_property
    def tool_format(self) -> ToolFormat | None:
        """How the model writes calls of tools; None where its chat template takes none."""
        try:
            template = self._tokenizer.get_chat_template(tools=[{}])
            return format_of(template) if "tools" in variables_of(template) else None
        except self.errors:
            return None

    def render(self, conversation: Sequence[Message], options: ChatOptions) -> str:
        """`conversation` and `options` hold nothing but what JSON has."""
        tools = list(options.tools) or None
        goes_straight = (
            self._compile is not None
            and conversation
            and not options.continue_final_message
            and all(map(_is_given_as_it_is, conversation))
        )
        if not goes_straight:
            rendered: str = self._tokenizer.apply_chat_template(
                conversation,
                tools=tools,
                tokenize=False,
                add_generation_prompt=options.add_generation_prompt,
                continue_final_message=options.continue_final_message,
                **options.template_kwargs,
            )
            return rendered
        variables = {
            **self._special_tokens,
            **options.template_kwargs,
            "messages": conversation,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": options.add_generation_prompt,
        }
        return self._template(tools).render(variables)

    def _template(self, tools: list[Mapping[str, Any]] | None) -> _Compiled:
        has_tools = tools is not None
        if has_tools not in self._compiled:
            template = self._tokenizer.get_chat_template(tools=tools)
            self._compiled[has_tools] = _Compiled(self._compile(template))
        return self._compiled[has_tools]


class _Compiled:
    """A template of Jinja whose globals are looked up once: doing so takes as long as the rest."""

    def __init__(self, template: Any) -> None:
        self._template = template
        self._globals = dict(template.globals)

    def render(self, variables: Mapping[str, Any]) -> str:
        template = self._template
        # Shared means that the variables are not joined to the globals: they are already.
        context = template.new_context({**self._globals, **variables}, shared=True)
        text: str = template.environment.concat(template.root_render_func(context))
        return text


def _is_given_as_it_is(message: Message) -> bool:
    return message.keys() <= _AS_IT_IS and None not in message.values()


def _compiler_of(tokenizer: Any) -> Any:
    """How transformers compiles a template; None where it would not be all that it does."""
    from transformers import PreTrainedTokenizerBase

    if type(tokenizer).apply_chat_template is not PreTrainedTokenizerBase.apply_chat_template:
        return None
    try:
        # Not public, and the only place that knows what transformers gives to templates.
        from transformers.utils.chat_template_utils import _compile_jinja_template
    except ImportError:
        return None
    return _compile_jinja_template
