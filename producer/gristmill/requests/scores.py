"""From the texts of a row of /v1/score, encoded, to its Job.

Tokens are cut as lm-evaluation-harness cuts them. Context and continuation are encoded together,
and what stands behind as many tokens as the context alone has is the continuation. White space at
the end of the context is moved to the continuation, since most vocabularies write a word with the
space before it. Where there is no context the begin-of-text token stands for it, or the end-of-text
token in a model without one. A text that is rolled begins with that token too, once. Messages are
rendered by the model's chat template, and what is scored is how the assistant's answer begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gristmill.errors import RowRefused
from gristmill.models import Model
from gristmill.requests.fields import PromptInput
from gristmill.requests.score_body import ScoreBody, invalid_field
from gristmill.requests.tokenise import Reading, Text, Tokeniser
from gristmill.scoring import ScoreType, Scoring, TextSize
from gristmill.types import Job, JobKind, Prompt, SamplingParams

#: Tokens of all windows of one row together, so that a small stride cannot fill the memory.
MAX_WINDOW_TOKENS = 1 << 22


def score_texts(body: ScoreBody, tokeniser: Tokeniser) -> tuple[Text | tuple[int, ...], ...]:
    """What is to be encoded, and what is encoded already: of a row that is rolled the text, of
    others the context and each continuation, with the context before it where that is a text.
    Raises RowRefused when the chat template objects."""
    if body.messages is not None:
        chat = tokeniser.chat(body.messages, body.options)
        return (chat, *(_bare(one) for _, one in body.continuations))
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
        raise invalid_field(
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
