"""From a draft and the token ids of its texts to a Window: check lengths, merge, order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from gristmill.errors import RowRefused
from gristmill.models import Model
from gristmill.requests.bodies import ChatBody, CompletionBody
from gristmill.requests.constrain import AnswerForm
from gristmill.requests.embeddings import EmbeddingBody, embedding_job
from gristmill.requests.input_file import Cursor
from gristmill.requests.score_body import ScoreBody
from gristmill.requests.scores import score_job
from gristmill.requests.tokenise import Text, Tokeniser
from gristmill.types import Endpoint, Job, JobKind, Prompt, Row, RowError


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row that gets an error line instead of a Job. `line_no` is its physical line."""

    row: Row
    error: RowError
    line_no: int


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of the file, ready: each of its rows is in one Job or one Refusal.

    Rows that must get the same answer share a Job. Jobs stand so that shared prefixes come
    together. `prompt_tokens` counts each row that has a Job, merged or not. `cursor` lies behind
    the last line. `template_hash` is that of the chat template, if prompts were rendered with it.
    """

    endpoint: Endpoint
    jobs: tuple[Job, ...]
    refused: tuple[Refusal, ...]
    num_rows: int
    prompt_tokens: int
    cursor: Cursor
    template_hash: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A row whose body is in order. Whether its prompts fit is known once they are encoded."""

    row: Row
    line_no: int
    body: ChatBody | CompletionBody | EmbeddingBody | ScoreBody
    prompts: tuple[Text | tuple[int, ...], ...]
    form: AnswerForm = field(default_factory=AnswerForm)


@dataclass(frozen=True, slots=True)
class Draft:
    """A window before its texts are encoded."""

    endpoint: Endpoint
    cursor: Cursor
    num_rows: int
    candidates: list[Candidate] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)

    @property
    def texts(self) -> Iterator[Text]:
        """What is to be encoded."""
        for candidate in self.candidates:
            yield from (prompt for prompt in candidate.prompts if isinstance(prompt, Text))


class RowSeeds:
    """The seed of a row that brings none: 64 bits that depend on the batch and its custom_id."""

    def __init__(self, batch_seed: bytes | str) -> None:
        seed = batch_seed.encode() if isinstance(batch_seed, str) else batch_seed
        # Hashed first, so that no batch seed is the beginning of another.
        self._prefix = hashlib.sha256(seed).digest()

    def of(self, custom_id: str) -> int:
        digest = hashlib.sha256(self._prefix + custom_id.encode()).digest()
        return int.from_bytes(digest[:8])


def finish(
    draft: Draft,
    encoded: Iterable[list[int]],
    *,
    model: Model,
    tokeniser: Tokeniser,
    seeds: RowSeeds,
    merge: bool = True,
) -> Window:
    """`encoded` has the token ids of each text of the draft. Rows whose prompt is empty or does
    not fit are refused.

    With `merge`, rows that must get the same answer share a Job.
    """
    encoded = iter(encoded)
    #: By the Job that a row asks for, without the row.
    rows_of: dict[Job, list[Row]] = {}
    refused = list(draft.refused)
    prompt_tokens = 0
    for candidate in draft.candidates:
        ids = [tuple(next(encoded)) if isinstance(p, Text) else p for p in candidate.prompts]
        try:
            job = _job(candidate, ids, model=model, tokeniser=tokeniser, seeds=seeds)
        except RowRefused as error:
            refused.append(refusal(candidate.row, candidate.line_no, error))
            continue
        wanted = job if merge else replace(job, rows=(candidate.row,))
        rows_of.setdefault(wanted, []).append(candidate.row)
        prompt_tokens += job.num_prompt_tokens
    jobs = [replace(job, rows=tuple(rows)) for job, rows in rows_of.items()]
    return Window(
        endpoint=draft.endpoint,
        jobs=tuple(sorted(jobs, key=lambda job: [prompt.token_ids for prompt in job.prompts])),
        refused=tuple(sorted(refused, key=lambda one: one.row.idx)),
        num_rows=draft.num_rows,
        prompt_tokens=prompt_tokens,
        cursor=draft.cursor,
        template_hash=model.template_hash if _has_chats(draft) else "",
    )


def _has_chats(draft: Draft) -> bool:
    scored = (c.body for c in draft.candidates if isinstance(c.body, ScoreBody))
    return draft.endpoint is Endpoint.CHAT or any(body.messages is not None for body in scored)


def refusal(row: Row, line_no: int, error: RowRefused) -> Refusal:
    """The error line of a row whose body or prompt is refused."""
    return Refusal(row, RowError(error.code, str(error), error.param, error.status_code), line_no)


def _job(
    candidate: Candidate,
    ids: list[tuple[int, ...]],
    *,
    model: Model,
    tokeniser: Tokeniser,
    seeds: RowSeeds,
) -> Job:
    """What the row asks for, without the row. Raises RowRefused."""
    body = candidate.body
    if isinstance(body, EmbeddingBody):
        return embedding_job(body, ids, model=model, tokeniser=tokeniser)
    if isinstance(body, ScoreBody):
        return score_job(body, ids, model=model, tokeniser=tokeniser)
    lefts = []
    for i, prompt_ids in enumerate(ids):
        param = "messages" if isinstance(body, ChatBody) else body.param_of(i)
        lefts.append(
            _num_left(prompt_ids, body.output_limit, param, model=model, tokeniser=tokeniser)
        )
    # A `max_tokens` beyond what the window leaves is lowered to it; without one, a chat may use all
    # of it. Either way an answer that fills the window ends with `length`.
    limit = max(lefts) if body.output_limit is None else min(body.output_limit, max(lefts))
    params = body.sampling(max_tokens=limit, derived_seed=seeds.of(candidate.row.custom_id))
    scored_from = 1 if params.echo and params.logprobs is not None else None
    return Job(
        (),
        tuple(Prompt(prompt_ids, scored_from) for prompt_ids in ids),
        candidate.form.applied_to(params),
        JobKind.GENERATE if limit else JobKind.SCORE,
    )


def _num_left(
    prompt_ids: tuple[int, ...],
    output_limit: int | None,
    param: str,
    *,
    model: Model,
    tokeniser: Tokeniser,
) -> int:
    """Tokens of output for which a prompt leaves room in the window. Raises RowRefused."""
    if not prompt_ids:
        raise RowRefused(
            f"`{param}` is empty: it has no tokens to start from. Write at least one character.",
            param=param,
            code="empty_prompt",
        )
    left = model.max_model_len - len(prompt_ids)
    if left < (0 if output_limit == 0 else 1):
        raise RowRefused(
            f"The prompt has {len(prompt_ids)} tokens, the window of this model has "
            f"{model.max_model_len} for prompt and answer together. Shorten the prompt, or use a "
            "model with a longer window.",
            param=param,
            code="context_length_exceeded",
        )
    tokeniser.check_known(prompt_ids, param=param)
    return left
