"""The body of /v1/score: its fields, and which go together.

    {"type": "loglikelihood", "context": "The answer is", "continuation": " Paris"}
    {"type": "choices", "context": "The answer is", "choices": [" Paris", " Rome"]}
    {"type": "choices", "messages": [{"role": "user", "content": "Rate"}], "choices": ["1", "2"]}
    {"type": "rolling", "text": "a long text", "window": 2048, "stride": 1024}

What is made of their texts is in scores.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
)

from gristmill.errors import RowRefused
from gristmill.models import Model
from gristmill.requests.bodies import no_such_token, refusal_of
from gristmill.requests.chat_template import ChatOptions
from gristmill.requests.fields import PromptInput, one_prompt, prompt_list, token_limit
from gristmill.requests.messages import Message, message
from gristmill.requests.unsupported import refuse_unsupported
from gristmill.types import Endpoint

#: What says how `messages` are rendered.
_OF_CHAT = ("continue_final_message", "chat_template_kwargs")

#: The fields that each type must have, and those that it may have.
_OF_CONTEXT = ("truncate_prompt_tokens", "context", "messages", *_OF_CHAT)
_FIELDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "loglikelihood": (("continuation",), _OF_CONTEXT),
    "choices": (("choices",), _OF_CONTEXT),
    "rolling": (("text",), ("window", "stride")),
}
_OF_ONE_TYPE = sorted({name for fields in _FIELDS.values() for some in fields for name in some})


class ScoreBody(BaseModel):
    """Texts may be token ids instead: then context and continuation are joined as they are, and
    nothing is moved or added. So it is with `messages`, which stand in the place of `context`;
    `continue_final_message` and `chat_template_kwargs` mean what they do for chats.

    `add_special_tokens` false keeps the tokenizer from adding its begin-of-text token. A row that
    is longer than the model's window is refused, unless `truncate_prompt_tokens` says how many
    tokens the model shall read at most (-1: as many as it can); then the beginning of its context
    is left out, never a part of a continuation. `window` is how many tokens the model reads at
    once of a text that is rolled (default: all it can), `stride` how many new ones each window
    after the first scores (default: `window`); all others of a window are context. Each token is
    scored once. `top_logprobs` likeliest tokens are reported beside each one.
    """

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    model: str
    type: Literal["loglikelihood", "choices", "rolling"]
    context: Annotated[PromptInput | None, PlainValidator(one_prompt)] = None
    messages: (
        Annotated[list[Annotated[Message, BeforeValidator(message)]], Field(min_length=1)] | None
    ) = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continuation: Annotated[PromptInput | None, PlainValidator(one_prompt)] = None
    choices: Annotated[tuple[PromptInput, ...] | None, PlainValidator(prompt_list)] = None
    text: Annotated[PromptInput | None, PlainValidator(one_prompt)] = None
    window: Annotated[int, Field(ge=2)] | None = None
    stride: Annotated[int, Field(ge=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int | None, PlainValidator(token_limit)] = None
    # These change nothing about an answer; they are accepted and not used.
    user: str | None = None
    safety_identifier: str | None = None
    metadata: dict[str, str] | None = None

    @property
    def continuations(self) -> tuple[tuple[str, PromptInput], ...]:
        """Each with the name of its place in the body."""
        if self.choices is not None:
            return tuple((f"choices[{i}]", one) for i, one in enumerate(self.choices))
        return () if self.continuation is None else (("continuation", self.continuation),)

    @property
    def options(self) -> ChatOptions:
        """How `messages` are rendered."""
        continues = self.continue_final_message or False
        return ChatOptions(not continues, continues, self.chat_template_kwargs or {})


def read_score_body(body: Mapping[str, Any], *, model: Model) -> ScoreBody:
    """Raises RowRefused with the parameter that is wrong."""
    refuse_unsupported(body, endpoint=Endpoint.SCORE, supported=ScoreBody.model_fields)
    try:
        fields = ScoreBody.model_validate(body)
    except ValidationError as error:
        raise refusal_of(error.errors(include_url=False)[0]) from None
    _check_fields(fields)
    texts = [("context", fields.context), ("text", fields.text), *fields.continuations]
    for param, value in texts:
        for token_id in value if isinstance(value, tuple) else ():
            if not 0 <= token_id < model.vocab_size:
                raise no_such_token(token_id, param=param, vocab_size=model.vocab_size)
    window = fields.window or model.max_model_len
    if window > model.max_model_len:
        raise invalid_field(
            "window",
            f"is {window}, and this model reads {model.max_model_len} tokens at once. Lower it.",
        )
    if (fields.stride or 1) > window:
        raise invalid_field(
            "stride",
            f"is {fields.stride} and the window {window} tokens: tokens between would be skipped. "
            "Lower it.",
        )
    return fields


def _check_fields(fields: ScoreBody) -> None:
    """Those of its own type, all of them, and of one kind."""
    required, optional = _FIELDS[fields.type]
    for name in required:
        if getattr(fields, name) is None:
            raise RowRefused(
                f"`{name}` is missing: a row of type {fields.type} has it.",
                param=name,
                code="missing_required_parameter",
            )
    for name in _OF_ONE_TYPE:
        if getattr(fields, name) is not None and name not in (*required, *optional):
            raise invalid_field(name, f"does not belong to a row of type {fields.type}. Remove it.")
    if fields.type != "rolling":
        _check_context(fields)
    for param, one in fields.continuations:
        if fields.context and type(one) is not type(fields.context):
            raise invalid_field(
                param, "and `context` must both be texts, or both lists of token ids."
            )


def _check_context(fields: ScoreBody) -> None:
    """There is one, a text or a chat."""
    if fields.context is None and fields.messages is None:
        raise RowRefused(
            f"`context` is missing: a row of type {fields.type} has it, or `messages`.",
            param="context",
            code="missing_required_parameter",
        )
    if fields.messages is None:
        for name in _OF_CHAT:
            if getattr(fields, name) is not None:
                raise invalid_field(name, "says how `messages` are rendered, and there are none.")
        return
    if fields.context is not None:
        raise invalid_field("messages", "stands in the place of `context`. Leave one of them out.")
    if fields.add_special_tokens is not None:
        raise invalid_field("add_special_tokens", "is the chat template's affair. Leave it out.")
    if fields.continue_final_message and fields.messages[-1]["role"] != "assistant":
        raise invalid_field(
            "continue_final_message", "needs a last message of the role `assistant`. Leave it out."
        )


def invalid_field(param: str, problem: str) -> RowRefused:
    return RowRefused(f"`{param}` {problem}", param=param, code="invalid_value")
