"""The body of /v1/score: its fields, and from its texts' token ids to a Job.

    {"type": "loglikelihood", "context": "The answer is", "continuation": " Paris"}
    {"type": "choices", "context": "The answer is", "choices": [" Paris", " Rome"]}
    {"type": "rolling", "text": "a long text", "window": 2048, "stride": 1024}

Tokens are cut as lm-evaluation-harness cuts them. Context and continuation are encoded together,
and what stands behind as many tokens as the context alone has is the continuation. White space at
the end of the context is moved to the continuation, since most vocabularies write a word with the
space before it. Where there is no context the begin-of-text token stands for it, or the end-of-text
token in a model without one. A text that is rolled begins with that token too, once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError

from gristmill.errors import RowRefused
from gristmill.models import Model
from gristmill.requests.bodies import no_such_token, refusal_of
from gristmill.requests.fields import PromptInput, one_prompt, prompt_list, token_limit
from gristmill.requests.tokenise import Reading, Text, Tokeniser
from gristmill.requests.unsupported import refuse_unsupported
from gristmill.scoring import ScoreType, Scoring, TextSize
from gristmill.types import Endpoint, Job, JobKind, Prompt, SamplingParams

#: Tokens of all windows of one row together, so that a small stride cannot fill the memory.
MAX_WINDOW_TOKENS = 1 << 22

#: The fields that each type must have, and those that it may have.
_FIELDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "loglikelihood": (("context", "continuation"), ("truncate_prompt_tokens",)),
    "choices": (("context", "choices"), ("truncate_prompt_tokens",)),
    "rolling": (("text",), ("window", "stride")),
}
_OF_ONE_TYPE = sorted({name for fields in _FIELDS.values() for some in fields for name in some})


class ScoreBody(BaseModel):
    """Texts may be token ids instead: then context and continuation are joined as they are, and
    nothing is moved or added.

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
        raise _invalid(
            "window",
            f"is {window}, and this model reads {model.max_model_len} tokens at once. Lower it.",
        )
    if (fields.stride or 1) > window:
        raise _invalid(
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
            raise _invalid(name, f"does not belong to a row of type {fields.type}. Remove it.")
    for param, one in fields.continuations:
        if fields.context and type(one) is not type(fields.context):
            raise _invalid(param, "and `context` must both be texts, or both lists of token ids.")


def score_texts(body: ScoreBody) -> tuple[Text | tuple[int, ...], ...]:
    """What is to be encoded, and what is encoded already: of a row that is rolled the text, of
    others the context and each continuation, with the context before it where there is one."""
    whole = Reading.BARE if body.add_special_tokens is False else Reading.OPEN
    if body.text is not None:
        return (Text(body.text, whole) if isinstance(body.text, str) else body.text,)
    if not isinstance(body.context, str):
        bare = tuple(_bare(one) for _, one in body.continuations)
        return (body.context or (), *bare)
    context = body.context.rstrip()
    moved = body.context[len(context) :]
    if not context:
        return ((), *(_bare(one, moved) for _, one in body.continuations))
    joined = (context + moved + str(one) for _, one in body.continuations)
    return (Text(context, whole), *(Text(one, whole) for one in joined))


def _bare(one: PromptInput, moved: str = "") -> Text | tuple[int, ...]:
    return Text(moved + one, Reading.BARE) if isinstance(one, str) else one


def score_job(
    body: ScoreBody, ids: Sequence[tuple[int, ...]], *, model: Model, tokeniser: Tokeniser
) -> Job:
    """The Job of a row, without the row. Raises RowRefused for what is empty or too long."""
    if body.text is not None:
        prompts = _windows(body, ids[0], model=model, tokeniser=tokeniser)
        sizes: tuple[TextSize, ...] = (_size(body.text, tokeniser),)
    else:
        prompts = tuple(_continuations(body, ids, model=model, tokeniser=tokeniser))
        sizes = tuple(_size(one, tokeniser, stripped=True) for _, one in body.continuations)
    top = body.top_logprobs or 0
    # The likeliest token says whether a greedy row would have written the same.
    params = SamplingParams(max_tokens=0, temperature=0.0, logprobs=max(top, 1))
    scoring = Scoring(ScoreType(body.type), sizes, top)
    return Job((), prompts, params, JobKind.SCORE, scoring=scoring)


def _continuations(
    body: ScoreBody, ids: Sequence[tuple[int, ...]], *, model: Model, tokeniser: Tokeniser
) -> Iterator[Prompt]:
    context, *others = ids
    is_joined = isinstance(body.context, str) and bool(context)
    for (param, _), other in zip(body.continuations, others, strict=True):
        own = other[len(context) :] if is_joined else other
        before = other[: len(context)] if is_joined else context
        if not before:
            prefix = _prefix_id(tokeniser, "context")
            before, own = (prefix,), own[1:] if own[:1] == (prefix,) else own
        if not own:
            raise RowRefused(
                f"`{param}` has no tokens of its own behind the context. Write at least one "
                "character that does not become a part of the context's last token.",
                param=param,
                code="empty_prompt",
            )
        yield _fitting(before, own, body, param, model=model, tokeniser=tokeniser)


def _fitting(
    before: tuple[int, ...],
    own: tuple[int, ...],
    body: ScoreBody,
    param: str,
    *,
    model: Model,
    tokeniser: Tokeniser,
) -> Prompt:
    # The last token is predicted, not read.
    num_read, limit = len(before) + len(own) - 1, model.max_model_len
    if body.truncate_prompt_tokens not in (None, -1):
        limit = min(limit, body.truncate_prompt_tokens or 0)
    may_cut = body.truncate_prompt_tokens is not None and len(own) <= limit
    if num_read > limit and not may_cut:
        raise RowRefused(
            f"`{param}` has {len(own)} tokens behind a context of {len(before)}, and this row may "
            f"have {limit} that the model reads. Shorten them, or set `truncate_prompt_tokens` to "
            "-1, which leaves out the beginning of the context.",
            param=param,
            code="context_length_exceeded",
        )
    num_dropped = max(0, num_read - limit)
    before = before[num_dropped:]
    tokeniser.check_known((*before, *own), param=param)
    return Prompt((*before, *own), len(before), num_dropped)


def _windows(
    body: ScoreBody, ids: tuple[int, ...], *, model: Model, tokeniser: Tokeniser
) -> tuple[Prompt, ...]:
    """Each token is scored once: those of the first window behind the prefix, then `stride` more
    at the end of each, behind as much context as the window has room for."""
    begins = bool(ids) and ids[0] == tokeniser.prefix_id
    prefix = ids[0] if begins else _prefix_id(tokeniser, "text")
    tokens = (prefix, *(ids[1:] if begins else ids))
    if len(tokens) < 2:
        raise RowRefused(
            "`text` has no tokens. Write at least one character.", param="text", code="empty_prompt"
        )
    tokeniser.check_known(tokens, param="text")
    window = body.window or model.max_model_len
    stride = body.stride or window
    num_windows = 1 + max(0, -(-(len(tokens) - 1 - window) // stride))
    if num_windows * window > MAX_WINDOW_TOKENS:
        raise _invalid(
            "stride",
            f"is {stride}: {num_windows} windows of {window} tokens are more than the "
            f"{MAX_WINDOW_TOKENS} tokens that one row may have. Raise it, or cut the text.",
        )
    end = min(len(tokens), window + 1)
    prompts = [Prompt(tokens[:end], 1)]
    while end < len(tokens):
        scored, end = end, min(len(tokens), end + stride)
        begin = end - window - 1
        prompts.append(Prompt(tokens[begin:end], scored - begin))
    return tuple(prompts)


def _prefix_id(tokeniser: Tokeniser, param: str) -> int:
    if tokeniser.prefix_id is None:
        raise RowRefused(
            "This model has neither a begin-of-text nor an end-of-text token that could stand "
            f"before the first token. Begin `{param}` with token ids of your own.",
            param=param,
            code="invalid_value",
        )
    return tokeniser.prefix_id


def _size(text: PromptInput, tokeniser: Tokeniser, *, stripped: bool = False) -> TextSize:
    text = text if isinstance(text, str) else tokeniser.decode(text)
    measured = (text.lstrip() or text) if stripped else text
    return TextSize(len(measured.encode()), len(re.split(r"\s+", measured)))


def _invalid(param: str, problem: str) -> RowRefused:
    return RowRefused(f"`{param}` {problem}", param=param, code="invalid_value")
