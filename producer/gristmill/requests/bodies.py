"""The bodies of chat and completions: which fields they have and which values are in range.

Strict throughout: a string is no number, a boolean is no integer, NaN is nothing. The defaults are
the API's neutral ones. A body that breaks a rule is refused alone (RowRefused), with its parameter
named. Fields that come later are in unsupported.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError
from pydantic_core import ErrorDetails

from gristmill.errors import RowRefused
from gristmill.requests.chat_template import ChatOptions
from gristmill.requests.fields import PromptInput, prompts, stop_strings, token_ids
from gristmill.requests.messages import Message, message
from gristmill.requests.structured import StructuredFields
from gristmill.requests.tools import Mode, ToolFields
from gristmill.requests.unsupported import refuse_unsupported
from gristmill.types import Endpoint, SamplingParams

_INT32_MAX = 2**31 - 1
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


# The API stops at 5 for completions; no reason to do so is known here.
_NumLogprobs = Annotated[int, Field(ge=0, le=20)]
_Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]


class _Body(StructuredFields):
    """What both endpoints share."""

    # Fields beyond these are looked at before, by name (refuse_unsupported).
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    model: str
    max_tokens: Annotated[int, Field(ge=1, le=_INT32_MAX)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=_INT32_MAX)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    # Bounded, so that a logit times or over it is finite.
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    seed: Annotated[int, Field(ge=_INT64_MIN, le=_INT64_MAX)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=_INT32_MAX)] | None = None
    stop: Annotated[tuple[str, ...], PlainValidator(stop_strings)] = ()
    stop_token_ids: Annotated[tuple[int, ...], PlainValidator(token_ids)] = ()
    include_stop_str_in_output: bool | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]] | None = (
        None
    )
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    # These four change nothing about an answer; they are accepted and not used.
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, str] | None = None

    @property
    def output_limit(self) -> int | None:
        """The most tokens that the caller wants, None if the body does not say."""
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """How many likeliest tokens to report beside each sampled one; None: no report."""
        return None

    @property
    def echoes(self) -> bool:
        """Whether the prompt stands before its answer."""
        return False

    def sampling(self, *, max_tokens: int, derived_seed: int) -> SamplingParams:
        """How to pick tokens, with every default resolved. `derived_seed` if there is none here.

        A signed seed keeps its 64 bits; a row for which nothing is drawn needs none and has 0, so
        that equal rows of that sort are equal Jobs.
        """
        # Adding 0.0 turns -0.0 into it. They count as equal, and read differently in a receipt.
        temperature = 1.0 if self.temperature is None else self.temperature + 0.0
        seed = derived_seed if self.seed is None else self.seed % 2**64
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(self.top_k or 0, 0),  # -1 is another way to say "off"
            min_p=self.min_p or 0.0,
            # "or" would hide nothing here: 0 is the default.
            frequency_penalty=(self.frequency_penalty or 0.0) + 0.0,
            presence_penalty=(self.presence_penalty or 0.0) + 0.0,
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            seed=seed if temperature > 0 and max_tokens else 0,
            logit_bias=_bias(self.logit_bias),
            min_tokens=self.min_tokens or 0,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            include_stop_str_in_output=self.include_stop_str_in_output or False,
            ignore_eos=self.ignore_eos or False,
            logprobs=self.num_logprobs,
            n=1 if self.n is None else self.n,
            echo=self.echoes,
            skip_special_tokens=self.skip_special_tokens is not False,
        )


class ChatBody(_Body, ToolFields):
    messages: Annotated[list[Annotated[Message, BeforeValidator(message)]], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=_INT32_MAX)] | None = None
    logprobs: bool | None = None
    top_logprobs: _NumLogprobs | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def options(self) -> ChatOptions:
        """How the conversation is rendered."""
        continues = self.continue_final_message or False
        begins = not continues if self.add_generation_prompt is None else self.add_generation_prompt
        tools = () if self.choice.mode is Mode.NONE else self.tools
        return ChatOptions(begins, continues, self.chat_template_kwargs or {}, tools)

    @property
    def output_limit(self) -> int | None:
        """`max_completion_tokens` wins over the older `max_tokens`."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return self.top_logprobs or 0 if self.logprobs else None


class CompletionBody(_Body):
    """`prompt` has one entry for each prompt. With `echo` an answer begins with its prompt's text,
    in which control tokens have none, and with `logprobs` the prompt's tokens have theirs, but for
    the first, before which nothing stands. `max_tokens` 0 generates nothing."""

    prompt: Annotated[tuple[PromptInput, ...], PlainValidator(prompts)]
    max_tokens: Annotated[int, Field(ge=0, le=_INT32_MAX)] | None = None
    echo: bool | None = None
    logprobs: _NumLogprobs | None = None
    best_of: Annotated[int, Field(ge=0)] | None = None

    @property
    def output_limit(self) -> int | None:
        """16 where the body does not say: the API's default."""
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def echoes(self) -> bool:
        return self.echo or False

    def param_of(self, idx: int) -> str:
        """The place of a prompt, for errors."""
        return "prompt" if len(self.prompt) == 1 else f"prompt[{idx}]"


def read_body(
    body: Mapping[str, Any], *, endpoint: Endpoint, vocab_size: int
) -> ChatBody | CompletionBody:
    """Raises RowRefused with the parameter that is wrong."""
    kind = ChatBody if endpoint is Endpoint.CHAT else CompletionBody
    refuse_unsupported(body, endpoint=endpoint, supported=kind.model_fields)
    try:
        fields = kind.model_validate(body)
    except ValidationError as error:
        raise refusal_of(error.errors(include_url=False)[0]) from None
    for token in fields.logit_bias or ():
        _check_token(token, param="logit_bias", vocab_size=vocab_size)
    for token_id in fields.stop_token_ids:
        if not 0 <= token_id < vocab_size:
            raise no_such_token(token_id, param="stop_token_ids", vocab_size=vocab_size)
    _check_min_tokens(fields)
    if isinstance(fields, ChatBody):
        _check_chat(fields)
        return fields
    if fields.best_of not in (None, fields.n or 1):
        raise RowRefused(
            f"`best_of` is {fields.best_of} and `n` is {fields.n or 1}: choosing among several "
            "answers is not supported. Leave it out; `n` says how many answers you get.",
            param="best_of",
            code="unsupported_parameter",
        )
    for i, one in enumerate(fields.prompt):
        for token_id in one if isinstance(one, tuple) else ():
            if not 0 <= token_id < vocab_size:
                raise no_such_token(token_id, param=fields.param_of(i), vocab_size=vocab_size)
    return fields


def _check_chat(fields: ChatBody) -> None:
    """Parameters that do not go together."""
    if fields.top_logprobs and not fields.logprobs:
        raise RowRefused(
            "`top_logprobs` needs `logprobs` to be true. Set it, or leave both out.",
            param="top_logprobs",
            code="invalid_value",
        )
    if not fields.continue_final_message:
        return
    if fields.add_generation_prompt:
        problem = "does not go with `add_generation_prompt`: the last message is continued, or a "
        problem += "new one is begun. Set one of them to false."
    elif fields.messages[-1]["role"] != "assistant":
        problem = "needs a last message of the role `assistant`. Leave it out for a new turn."
    else:
        return
    raise RowRefused(
        f"`continue_final_message` {problem}", param="continue_final_message", code="invalid_value"
    )


def _check_min_tokens(fields: ChatBody | CompletionBody) -> None:
    limit = fields.output_limit
    if limit is not None and (fields.min_tokens or 0) > limit:
        raise RowRefused(
            f"`min_tokens` is {fields.min_tokens}, and the row may have {limit} tokens at most. "
            "Lower it, or raise that limit.",
            param="min_tokens",
            code="invalid_value",
        )


def _bias(logit_bias: Mapping[str, float] | None) -> tuple[tuple[int, float], ...]:
    return tuple(sorted((int(token), bias + 0.0) for token, bias in (logit_bias or {}).items()))


def _check_token(token: str, *, param: str, vocab_size: int) -> None:
    # int() alone would take "1_0", " 1" and "٣", and two spellings of one id.
    if not (token.isascii() and token.isdigit() and len(token) < 12 and str(int(token)) == token):
        raise no_such_token(token, param=param, vocab_size=vocab_size)
    if int(token) >= vocab_size:
        raise no_such_token(token, param=param, vocab_size=vocab_size)


def no_such_token(token: object, *, param: str, vocab_size: int) -> RowRefused:
    return RowRefused(
        f"`{param}`: {_show(token)} is no token id of this model, whose ids are 0 to "
        f"{vocab_size - 1}.",
        param=param,
        code="invalid_value",
    )


def refusal_of(error: ErrorDetails) -> RowRefused:
    """One of pydantic's errors in the words of the API."""
    param = _param(error)
    if error["type"] == "missing":
        return RowRefused(f"`{param}` is missing.", param=param, code="missing_required_parameter")
    if "field" in error.get("ctx", {}):
        return RowRefused(f"`{param}` {error['msg']}.", param=param, code=error["type"])
    if error["type"] == "too_short":
        return RowRefused(f"`{param}` must not be empty.", param=param, code="invalid_value")
    code = "invalid_type" if error["type"].endswith("_type") else "invalid_value"
    problem = error["msg"].removeprefix("Input ").replace("should", "must", 1)
    return RowRefused(
        f"`{param}` {problem[0].lower()}{problem[1:]}, not {_show(error['input'])}.",
        param=param,
        code=code,
    )


def _param(error: ErrorDetails) -> str:
    """("messages", 0, "content") → messages[0].content; a bad value of logit_bias → logit_bias."""
    first, *rest = error["loc"]
    if first in ("logit_bias", "metadata"):
        return str(first)
    field = error.get("ctx", {}).get("field")
    parts = [*rest, field] if field else rest
    return str(first) + "".join(f"[{p}]" if type(p) is int else f".{p}" for p in parts)


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
