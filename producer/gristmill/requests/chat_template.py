"""What a caller may say about the rendering of a chat, and what a template knows of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gristmill.errors import RowRefused

#: Given by the API or by other parameters, so not by `chat_template_kwargs`.
_RESERVED = frozenset(
    {
        *("messages", "tools", "documents", "add_generation_prompt"),
        *("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token"),
        *("mask_token", "additional_special_tokens"),
    }
)


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How a conversation ends, the variables of the template that the caller sets, and the
    functions that the model may call.

    A new turn of the assistant is begun, unless `add_generation_prompt` is false or the last
    message is continued.
    """

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[Mapping[str, Any]] = ()

    def check(self, names: Collection[str]) -> None:
        """Raises RowRefused when a template that uses the variables `names` would ignore one."""
        known = set(names) - _RESERVED
        for name in self.template_kwargs:
            if name not in known:
                listed = ", ".join(f"`{name}`" for name in sorted(known)) or "none"
                raise RowRefused(
                    f"`chat_template_kwargs`: the chat template of this model takes no `{name}`. "
                    f"What it takes: {listed}.",
                    param="chat_template_kwargs",
                    code="unsupported_parameter",
                )
        if self.continue_final_message or self.add_generation_prompt:
            return
        if "add_generation_prompt" not in names:
            raise RowRefused(
                "`add_generation_prompt`: the chat template of this model always begins a new "
                "turn. Leave it out, or write the prompt yourself on /v1/completions.",
                param="add_generation_prompt",
                code="unsupported_parameter",
            )


def variables_of(template: str, *, given: Collection[str] = ()) -> frozenset[str]:
    """The variables that a template looks up; not those of Jinja itself, and not `given`."""
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.meta import find_undeclared_variables
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The tag by which transformers marks what the assistant wrote."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(extensions=[Generation, loopcontrols])
    # What transformers adds to every template.
    provided = {"raise_exception", "strftime_now", *environment.globals, *given}
    return frozenset(find_undeclared_variables(environment.parse(template)) - provided)
