"""The body of /v1/embeddings: its fields, and from its texts' token ids to a Job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError

from gristmill.embedding import EmbeddingParams, Pooling
from gristmill.errors import RowRefused
from gristmill.models import Model
from gristmill.requests.bodies import no_such_token, refusal_of
from gristmill.requests.fields import PromptInput, invalid, token_limit
from gristmill.requests.tokenise import Reading, Text, Tokeniser
from gristmill.requests.unsupported import refuse_unsupported
from gristmill.types import Endpoint, Job, JobKind, Prompt, SamplingParams

#: The API's limit of one request.
MAX_INPUTS = 2048
#: Nothing is generated, and nothing is random.
_NO_SAMPLING = SamplingParams(max_tokens=0, temperature=0.0)


def inputs(value: object) -> tuple[PromptInput, ...]:
    """Texts or lists of token ids; one of either may stand alone."""
    if type(value) is str or (type(value) is list and value and type(value[0]) is int):
        value = [value]
    if type(value) is not list:
        raise invalid("must be a string, a list of token ids, or a list of either")
    if not 0 < len(value) <= MAX_INPUTS:
        raise invalid(f"must have 1 to {MAX_INPUTS} entries, not {len(value)}")
    return tuple(_input(one, i) for i, one in enumerate(value))


def _input(value: object, i: int) -> PromptInput:
    if type(value) is str and value:
        return value
    if type(value) is list and value and all(type(item) is int for item in value):
        return tuple(value)
    if value in ("", []):
        raise invalid(f"has an empty entry at {i}, which has no vector. Leave it out")
    raise invalid(f"must hold strings or lists of token ids; the entry at {i} is neither")


class EmbeddingBody(BaseModel):
    """`pooling`, `normalize` and `truncate_prompt_tokens` are not of the API; without them the
    model's own pooling and normalisation are used, and a text that is too long is refused."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    model: str
    input: Annotated[tuple[PromptInput, ...], PlainValidator(inputs)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    pooling: Literal["mean", "last", "cls"] | None = None
    normalize: bool | None = None
    truncate_prompt_tokens: Annotated[int | None, PlainValidator(token_limit)] = None
    # These change nothing about an answer; they are accepted and not used.
    user: str | None = None
    safety_identifier: str | None = None
    metadata: dict[str, str] | None = None


def read_embedding_body(body: Mapping[str, Any], *, model: Model) -> EmbeddingBody:
    """Raises RowRefused with the parameter that is wrong."""
    refuse_unsupported(body, endpoint=Endpoint.EMBEDDINGS, supported=EmbeddingBody.model_fields)
    try:
        fields = EmbeddingBody.model_validate(body)
    except ValidationError as error:
        raise refusal_of(error.errors(include_url=False)[0]) from None
    for one in fields.input:
        for token_id in one if type(one) is tuple else ():
            if not 0 <= token_id < model.vocab_size:
                raise no_such_token(token_id, param="input", vocab_size=model.vocab_size)
    if fields.dimensions is not None and fields.dimensions > model.embedding.size:
        raise RowRefused(
            f"`dimensions` is {fields.dimensions}, and the vectors of this model have "
            f"{model.embedding.size} numbers. Leave it out, or lower it.",
            param="dimensions",
            code="invalid_value",
        )
    return fields


def embedding_prompts(body: EmbeddingBody, model: Model) -> tuple[Text | tuple[int, ...], ...]:
    """What is to be encoded, and what is encoded already."""
    lower = model.embedding.lowercase
    return tuple(
        Text(one.lower() if lower else one, Reading.RAW) if isinstance(one, str) else one
        for one in body.input
    )


def embedding_job(
    body: EmbeddingBody, ids: Sequence[tuple[int, ...]], *, model: Model, tokeniser: Tokeniser
) -> Job:
    """The Job of a row, without the row. Raises RowRefused for an input that is too long."""
    own = model.embedding
    prompts = []
    for i, (one, token_ids) in enumerate(zip(body.input, ids, strict=True)):
        closing = tokeniser.num_closing_tokens if isinstance(one, str) else 0
        shortened = _shortened(token_ids, body.truncate_prompt_tokens, closing, model)
        _check(shortened, i, model=model, tokeniser=tokeniser)
        prompts.append(Prompt(shortened, num_dropped=len(token_ids) - len(shortened)))
    params = EmbeddingParams(
        pooling=Pooling(body.pooling) if body.pooling else own.pooling,
        normalize=own.normalize if body.normalize is None else body.normalize,
        dimensions=body.dimensions,
        base64=body.encoding_format == "base64",
    )
    return Job((), tuple(prompts), _NO_SAMPLING, JobKind.EMBED, params)


def _shortened(
    ids: tuple[int, ...], limit: int | None, num_closing: int, model: Model
) -> tuple[int, ...]:
    """The first `limit` tokens, the last of which are those that the tokenizer puts at the end."""
    if limit is None:
        return ids
    limit = model.max_model_len if limit == -1 else limit
    if len(ids) <= limit:
        return ids
    if limit <= num_closing:
        raise RowRefused(
            f"`truncate_prompt_tokens` is {limit}, and {num_closing} of these are the tokens that "
            "end a text. Raise it.",
            param="truncate_prompt_tokens",
            code="invalid_value",
        )
    return ids[: limit - num_closing] + ids[len(ids) - num_closing :]


def _check(ids: tuple[int, ...], i: int, *, model: Model, tokeniser: Tokeniser) -> None:
    param = f"input[{i}]"
    if not ids:
        raise RowRefused(
            f"`{param}` has no tokens, so it has no vector. Leave it out.",
            param=param,
            code="empty_prompt",
        )
    if len(ids) > model.max_model_len:
        raise RowRefused(
            f"`{param}` has {len(ids)} tokens, and this model reads {model.max_model_len}. Shorten "
            "it, or set `truncate_prompt_tokens` to -1, which leaves out its end.",
            param=param,
            code="context_length_exceeded",
        )
    tokeniser.check_known(ids, param=param)
