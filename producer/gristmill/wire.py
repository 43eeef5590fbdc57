"""How the nouns of types.py are stored: versioned, checksummed, big integers intact.

Shards and Segments are documents, compressed and with a checksum. What is sent stands in
message_wire.py, and its functions for pointers and Bells are to be had here too.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from operator import attrgetter
from typing import Any

import msgspec

from gristmill.embedding import EmbeddingParams, Pooling
from gristmill.errors import CorruptDocument, UnsupportedFormat
from gristmill.histogram import Histogram
from gristmill.marks import CloseReason, Mark
from gristmill.message_wire import FORMAT_VERSION
from gristmill.message_wire import decode_bell as decode_bell
from gristmill.message_wire import decode_pointer as decode_pointer
from gristmill.message_wire import encode_bell as encode_bell
from gristmill.message_wire import encode_pointer as encode_pointer
from gristmill.packing import pack, unpack, unpack_floats
from gristmill.scoring import ScoreType, Scoring, TextSize
from gristmill.types import (
    Checkpoint,
    Choice,
    Endpoint,
    FinishReason,
    Grammar,
    GrammarKind,
    Job,
    JobKind,
    ModelPin,
    Prompt,
    Row,
    RowError,
    RowResult,
    SamplingParams,
    Segment,
    Shard,
    Times,
    TokenLogprob,
    ToolFormat,
    ToolUse,
    Usage,
)

_NEUTRAL = SamplingParams(max_tokens=0)  # what is left out of the parameters of a Job
_values_of = attrgetter(*SamplingParams.__slots__)
_NEUTRAL_VALUES = _values_of(_NEUTRAL)

# A document:
#   gristmill shard v2 <sha256 of the payload, hex>\n
#   <payload: JSON, compressed with zlib>


def encode_document(kind: str, body: Mapping[str, Any]) -> bytes:
    """A self-describing, checksummed, compressed document. Integers of any size survive."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    payload = zlib.compress(text.encode(), 1)
    digest = hashlib.sha256(payload).hexdigest()
    return f"gristmill {kind} v{FORMAT_VERSION} {digest}\n".encode() + payload


def decode_document(kind: str, document: bytes) -> dict[str, Any]:
    """Raises CorruptDocument (damaged, or not a `kind`) or UnsupportedFormat (another version)."""
    head, _, payload = document.partition(b"\n")
    words = head[:200].decode("ascii", "replace").split(" ")
    if len(words) != 4 or words[:2] != ["gristmill", kind]:
        raise CorruptDocument(f"This is not a {kind} of Gristmill: it begins with {head[:40]!r}.")
    if words[2] != f"v{FORMAT_VERSION}":
        raise UnsupportedFormat(
            f"This {kind} has format {words[2]}, this version of Gristmill reads "
            f"v{FORMAT_VERSION}. Use the version that wrote it, or start the batch anew."
        )
    if hashlib.sha256(payload).hexdigest() != words[3]:
        raise CorruptDocument(f"The checksum of this {kind} does not match: it was cut or damaged.")
    body: dict[str, Any] = msgspec.json.decode(zlib.decompress(payload))
    return body


def encode_shard(shard: Shard) -> bytes:
    return encode_document(
        "shard",
        {
            "tenant_id": shard.tenant_id,
            "batch_id": shard.batch_id,
            "run_id": shard.run_id,
            "n": shard.n,
            "endpoint": shard.endpoint.value,
            "model": asdict(shard.model),
            "template_hash": shard.template_hash,
            "jobs": [
                {
                    "kind": job.kind.value,
                    "rows": _rows_to_wire(job.rows),
                    "prompts": [
                        [pack(p.token_ids), p.scored_from, p.num_dropped] for p in job.prompts
                    ],
                    "params": _params_to_wire(job.params),
                    "embedding": job.embedding and asdict(job.embedding),
                    "scoring": job.scoring and asdict(job.scoring),
                }
                for job in shard.jobs
            ],
        },
    )


def decode_shard(document: bytes, *, for_lines: bool = False) -> Shard:
    """Raises CorruptDocument or UnsupportedFormat.

    `for_lines` leaves out the ids of prompts whose tokens no line of a result shows: to read them
    is most of the work.
    """
    body = decode_document("shard", document)
    params_of = _params_reader()
    endpoint, model = Endpoint(body.pop("endpoint")), ModelPin(**body.pop("model"))
    jobs = tuple(
        Job(
            rows=_rows_from_wire(job["rows"]),
            prompts=tuple(
                Prompt(unpack(ids) if is_needed else (), scored_from, *more)
                for ids, scored_from, *more in job["prompts"]
                for is_needed in [not for_lines or params.echo or scored_from is not None]
            ),
            params=params,
            kind=JobKind(job["kind"]),
            embedding=_embedding_from_wire(job["embedding"]),
            scoring=_scoring_from_wire(job["scoring"]),
            adapter=model.adapter,
        )
        for job in body.pop("jobs")
        for params in [params_of(job["params"])]
    )
    return Shard(**body, endpoint=endpoint, model=model, jobs=jobs)


def encode_segment(segment: Segment) -> bytes:
    return encode_document(
        "segment",
        {
            "tenant_id": segment.tenant_id,
            "batch_id": segment.batch_id,
            "run_id": segment.run_id,
            "shard_n": segment.shard_n,
            "attempt_id": segment.attempt_id,
            "seq": segment.seq,
            "results": [_result_to_wire(result) for result in segment.results],
            "checkpoints": [
                [
                    *(c.job_idx, c.choice_idx, c.start, pack(c.token_ids), pack(c.times_ms)),
                    _logprobs_to_wire(c.logprobs),
                ]
                for c in segment.checkpoints
            ],
            "mark": asdict(segment.mark),
            "engine_version": segment.engine_version,
            "ttft": segment.ttft.to_wire(),
            "itl": segment.itl.to_wire(),
        },
    )


def decode_segment(document: bytes) -> Segment:
    """Raises CorruptDocument or UnsupportedFormat."""
    body = decode_document("segment", document)
    return Segment(
        **{
            **body,
            "results": tuple(_result_from_wire(result) for result in body["results"]),
            "checkpoints": tuple(
                Checkpoint(job_idx, i, start, unpack(ids), unpack(times), _logprobs_from_wire(lps))
                for job_idx, i, start, ids, times, lps in body["checkpoints"]
            ),
            "mark": _mark_from_wire(body["mark"]),
            "ttft": Histogram.from_wire(body["ttft"]),
            "itl": Histogram.from_wire(body["itl"]),
        }
    )


def _flat(values: Any) -> dict[str, Any]:
    """`asdict` of a dataclass with slots whose values need no copy: there is one for each row."""
    return {name: getattr(values, name) for name in values.__slots__}


def _result_to_wire(result: RowResult) -> dict[str, Any]:
    return {
        "job_idx": result.job_idx,
        "rows": _rows_to_wire(result.rows),
        "usage": _flat(result.usage),
        "choices": [_choice_to_wire(choice) for choice in result.choices],
        "error": result.error and asdict(result.error),
        "finished_at": result.finished_at,
        "ttft_s": result.ttft_s,
        "itl_s": result.itl_s,
        "times": list(_flat(result.times).values()),
    }


def _result_from_wire(wire: dict[str, Any]) -> RowResult:
    return RowResult(
        **{
            **wire,
            "rows": _rows_from_wire(wire["rows"]),
            "usage": Usage(**wire["usage"]),
            "choices": tuple(_choice_from_wire(choice) for choice in wire["choices"]),
            "error": wire["error"] and RowError(**wire["error"]),
            "times": Times(*wire["times"]),
        }
    )


def _mark_from_wire(wire: dict[str, Any]) -> Mark:
    closed = wire.pop("closed")
    return Mark(closed=closed and CloseReason(closed), **wire)


def _choice_to_wire(choice: Choice) -> list[Any]:
    return [
        *(pack(choice.token_ids), choice.text, choice.finish_reason.value),
        *(_logprobs_to_wire(choice.logprobs), pack(choice.text_offsets)),
        [[idx, base64.b64encode(text).decode()] for idx, text in choice.token_bytes.items()],
        *(_logprobs_to_wire(choice.scored), pack(choice.embedding, "f")),
    ]


def _choice_from_wire(wire: Sequence[Any]) -> Choice:
    ids, text, finish_reason, logprobs, offsets, token_bytes, scored, embedding = wire
    return Choice(
        *(unpack(ids), text, FinishReason(finish_reason)),
        *(_logprobs_from_wire(logprobs), unpack(offsets)),
        {idx: base64.b64decode(text) for idx, text in token_bytes},
        *(_logprobs_from_wire(scored), unpack_floats(embedding)),
    )


def _logprobs_to_wire(logprobs: Sequence[TokenLogprob]) -> list[str]:
    """How many alternatives each token has, their ids, and all values. Nothing where none is."""
    if not logprobs:
        return []
    top = [pair for token in logprobs for pair in token.top]
    return [
        pack([len(token.top) for token in logprobs]),
        pack([token_id for token_id, _ in top]),
        pack([token.logprob for token in logprobs] + [value for _, value in top], "f"),
    ]


def _logprobs_from_wire(wire: Sequence[str]) -> tuple[TokenLogprob, ...]:
    if not wire:
        return ()
    counts, ids, values = unpack(wire[0]), unpack(wire[1]), unpack_floats(wire[2])
    top = iter(zip(ids, values[len(counts) :], strict=True))
    return tuple(
        TokenLogprob(logprob, tuple(islice(top, count)))
        for logprob, count in zip(values, counts, strict=False)
    )


def _embedding_from_wire(wire: dict[str, Any] | None) -> EmbeddingParams | None:
    if wire is None:
        return None
    return EmbeddingParams(**{**wire, "pooling": Pooling(wire["pooling"])})


def _scoring_from_wire(wire: dict[str, Any] | None) -> Scoring | None:
    if wire is None:
        return None
    sizes = tuple(TextSize(**size) for size in wire["sizes"])
    return Scoring(ScoreType(wire["type"]), sizes, wire["top_logprobs"])


def _params_to_wire(params: SamplingParams) -> dict[str, Any]:
    values = zip(SamplingParams.__slots__, _values_of(params), _NEUTRAL_VALUES, strict=True)
    changed = {name: value for name, value, neutral in values if value != neutral}
    return {n: asdict(v) if isinstance(v, Grammar | ToolUse) else v for n, v in changed.items()}


def _params_reader() -> Callable[[dict[str, Any]], SamplingParams]:
    """Reads them Job by Job: most ask for the same as the one before."""
    last: dict[str, Any] | None = None
    read = _NEUTRAL

    def params_of(wire: dict[str, Any]) -> SamplingParams:
        nonlocal last, read
        if wire != last:
            last, read = wire, _params_from_wire(wire)
        return read

    return params_of


def _params_from_wire(wire: dict[str, Any]) -> SamplingParams:
    grammar, tools = wire.get("grammar"), wire.get("tools")
    return SamplingParams(
        **{
            "max_tokens": 0,
            **wire,
            "logit_bias": tuple((token, bias) for token, bias in wire.get("logit_bias", ())),
            "stop": tuple(wire.get("stop", ())),
            "stop_token_ids": tuple(wire.get("stop_token_ids", ())),
            "grammar": grammar and Grammar(**{**grammar, "kind": GrammarKind(grammar["kind"])}),
            "tools": tools and ToolUse(ToolFormat(tools["format"]), tuple(tools["names"])),
        }
    )


def _rows_to_wire(rows: Iterable[Row]) -> list[list[int | str]]:
    return [[row.idx, row.custom_id] for row in rows]


def _rows_from_wire(wire: Iterable[Sequence[Any]]) -> tuple[Row, ...]:
    return tuple(Row(idx, custom_id) for idx, custom_id in wire)
