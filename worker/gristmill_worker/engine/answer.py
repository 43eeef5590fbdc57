"""What a Sequence that has come to its end hands out."""

from __future__ import annotations

from gristmill.types import Usage
from gristmill_worker.engine.base import Finished, Generated
from gristmill_worker.engine.decoding import Decoding
from gristmill_worker.engine.pooling import NOT_FINITE
from gristmill_worker.engine.sequence import Sequence
from gristmill_worker.engine.token_bytes import TokenBytes


def answer(seq: Sequence, decoding: Decoding, token_bytes: TokenBytes) -> Finished:
    """The end of a Sequence without an error so far. Raises what its tokenizer raises."""
    vector = decoding.pooler and decoding.pooler.vector(seq.num_prompt_tokens)
    if decoding.pooler is not None and vector is None:
        return Finished(seq.seq_id, error=NOT_FINITE)
    text = decoding.text()
    return Finished(
        seq.seq_id,
        usage=Usage(seq.num_prompt_tokens, seq.num_generated_tokens, seq.num_cached_tokens or 0),
        generated=generated(seq),
        text=text,
        finish_reason=seq.finish_reason,
        text_offsets=decoding.text_offsets(text) if seq.params.logprobs is not None else (),
        token_bytes=_bytes_of(seq, token_bytes),
        scored=tuple(seq.scored),
        embedding=vector or (),
        queue_s=decoding.stretches.queue_s,
        prefill_s=decoding.stretches.prefill_s,
    )


def generated(seq: Sequence) -> Generated:
    """A snapshot of what is known of its tokens."""
    return Generated(tuple(seq.generated_ids), tuple(seq.times_ms), tuple(seq.logprobs))


def _bytes_of(seq: Sequence, token_bytes: TokenBytes) -> dict[int, bytes]:
    """The bytes of all tokens that the row's log-probabilities name."""
    if seq.params.logprobs is None:
        return {}
    first = seq.num_prompt_tokens if seq.scored_from is None else seq.scored_from
    named = seq.token_ids[0 if seq.params.echo else first :]
    ids = {i for token in (*seq.scored, *seq.logprobs) for i, _ in token.top}
    return {i: token_bytes.of(i) for i in sorted(ids.union(named))}
