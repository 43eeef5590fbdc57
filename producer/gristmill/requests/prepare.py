"""One pass over an input file: windows of Jobs and Refusals, in memory that the file cannot grow.

    this thread       lines → requests → bodies → rendered texts     (a Draft)
    other threads     texts → token ids
    this thread       token ids → Jobs                               (a Window, window.py)

While one window is encoded the one before it is finished, and the next is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain
from typing import BinaryIO

from gristmill.errors import RowRefused
from gristmill.models import Model
from gristmill.requests.bodies import ChatBody, CompletionBody, read_body
from gristmill.requests.constrain import answer_form
from gristmill.requests.embeddings import embedding_prompts, read_embedding_body
from gristmill.requests.envelope import Request
from gristmill.requests.input_file import Cursor, InputFile, Stretch
from gristmill.requests.score_body import read_score_body
from gristmill.requests.scores import score_texts
from gristmill.requests.tokenise import Reading, Text, Tokeniser, in_groups
from gristmill.requests.window import Candidate, Draft, Refusal, RowSeeds, Window, finish, refusal
from gristmill.settings import Settings
from gristmill.types import Endpoint, Row

__all__ = ["Cursor", "Refusal", "Window", "prepare"]

#: Each keeps all cores busy. While one waits for the interpreter, to hand back what it has, the
#: other has the cores.
_NUM_ENCODERS = 2


def prepare(
    source: BinaryIO,
    *,
    model: Model,
    settings: Settings,
    batch_seed: bytes | str,
    endpoint: Endpoint | None = None,
    start: Cursor | None = None,
    tokeniser: Tokeniser | None = None,
) -> Iterator[Window]:
    """Reads `source` from its byte 0 and yields what lies behind `start`, window by window.

    With `endpoint` None the first line decides. Raises BatchInvalid at the end of the file if it
    breaks the rules of the file, so nothing that was yielded may be treated as valid before the
    iterator is exhausted. No window is yielded that holds a bad line or lies behind one, and
    nothing is tokenised any more once there is one.
    """
    tokeniser = tokeniser or Tokeniser(model)
    finished = partial(
        finish,
        model=model,
        tokeniser=tokeniser,
        seeds=RowSeeds(batch_seed),
        merge=settings.merge_identical_rows,
    )
    under_way: tuple[Draft, Iterator[list[int]]] | None = None
    with (
        _encoders() as encoders,
        closing(InputFile(source, model=model, settings=settings, endpoint=endpoint)) as file,
    ):
        for stretch in file.stretches(start=start or Cursor()):
            draft = _draft(stretch, model=model, tokeniser=tokeniser)
            # All groups begin at once, whenever they are asked for.
            encoded = encoders.map(tokeniser.encode, in_groups(draft.texts))
            if under_way is not None:
                yield finished(*under_way)
            under_way = draft, chain.from_iterable(encoded)
        if under_way is not None:
            yield finished(*under_way)


@contextmanager
def _encoders() -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(_NUM_ENCODERS, "gristmill-encode")
    try:
        yield pool
    finally:
        # Whoever leaves earlier wants nothing more of what waits.
        pool.shutdown(cancel_futures=True)


def _draft(stretch: Stretch, *, model: Model, tokeniser: Tokeniser) -> Draft:
    draft = Draft(stretch.endpoint, stretch.cursor, len(stretch.requests))
    for row_idx, request in enumerate(stretch.requests, stretch.start_idx):
        row = Row(row_idx, request.custom_id)
        try:
            draft.candidates.append(
                _candidate(row, request, stretch.endpoint, model=model, tokeniser=tokeniser)
            )
        except RowRefused as error:
            draft.refused.append(refusal(row, request.line_no, error))
    return draft


def _candidate(
    row: Row, request: Request, endpoint: Endpoint, *, model: Model, tokeniser: Tokeniser
) -> Candidate:
    """The body, checked, and its prompts, rendered. Raises RowRefused."""
    if endpoint is Endpoint.EMBEDDINGS:
        wanted = read_embedding_body(request.body, model=model)
        return Candidate(row, request.line_no, wanted, embedding_prompts(wanted, model))
    if endpoint is Endpoint.SCORE:
        scored = read_score_body(request.body, model=model)
        return Candidate(row, request.line_no, scored, score_texts(scored, tokeniser))
    body = read_body(request.body, endpoint=endpoint, vocab_size=model.vocab_size)
    form = answer_form(body, tokeniser)
    return Candidate(row, request.line_no, body, _prompts(body, tokeniser), form)


def _prompts(
    body: ChatBody | CompletionBody, tokeniser: Tokeniser
) -> tuple[Text | tuple[int, ...], ...]:
    if isinstance(body, ChatBody):
        return (tokeniser.chat(body.messages, body.options),)
    return tuple(
        Text(prompt, Reading.RAW) if isinstance(prompt, str) else prompt for prompt in body.prompt
    )
