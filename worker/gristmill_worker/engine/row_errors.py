"""The errors that rows end in: what the Engine cannot compute, and what went wrong with one.

An exception that one row causes ends that row and no other. What the machine does wrong is nobody's
row, and goes on to the Worker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from gristmill.types import RowError
from gristmill_worker.engine.sampler import Picks, SamplingRow, pick
from gristmill_worker.engine.sequence import Sequence
from gristmill_worker.models.loader import LoadedModel

log = logging.getLogger(__name__)

_MACHINE = (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError)


def invalid_output(problem: str, *, at: int) -> RowError:
    """The model, or the row's own parameters, leave no answer."""
    return RowError(
        "model_output_invalid",
        f"{problem} at token {at} of this row.",
        status_code=500,
        type="server_error",
    )


def row_fault(error: Exception) -> RowError:
    """The end of a row whose own computation raised `error`. Raises it again if it is the
    machine's."""
    if _is_of_the_machine(error):
        raise error
    log.error("row ends in an exception", exc_info=error)
    return RowError(
        "internal_error",
        f"Computing this row raised {type(error).__name__}: {str(error)[:200]}. Other rows go on. "
        "Leave out the parameters that are not needed, and report this.",
        status_code=500,
        type="server_error",
    )


def _is_of_the_machine(error: Exception) -> bool:
    return isinstance(error, _MACHINE) or "can't allocate memory" in str(error)


def pick_apart(
    logits: torch.Tensor,  # [S, vocab_size] float32, changed in place
    rows: list[SamplingRow],
    *,
    may_wait: bool,
    compute_again: Callable[[], torch.Tensor],  # -> [S, vocab_size]
) -> tuple[Picks, dict[int, RowError]]:
    """As `pick`, but a row that makes the Sampler raise is told from the others, with its error.

    The Sampler works on all rows at once. When it raises, the logits, which it may have changed,
    are computed again, and each row is sampled alone. Where all of several rows raise it is no
    row's doing, and the exception leaves.
    """
    try:
        return pick(logits, rows, may_wait=may_wait), {}
    except Exception as error:
        if _is_of_the_machine(error):
            raise
        logits = compute_again()
        token_ids = torch.zeros(len(rows), dtype=torch.long, device=logits.device)
        errors: dict[int, RowError] = {}
        for i, row in enumerate(rows):
            try:
                token_ids[i : i + 1] = pick(logits[i : i + 1], [row]).token_ids
            except Exception as of_row:
                errors[i] = row_fault(of_row)
        if len(rows) > 1 and len(errors) == len(rows):
            raise
        return Picks(token_ids), errors


def refusal(
    seq: Sequence,
    loaded: LoadedModel,
    *,
    max_model_len: int,
    num_kv_tokens: int,
    makes_vectors: bool,
) -> RowError | None:
    """Why a row can never be computed here; None where it can.

    `max_model_len` is what this Engine takes: no more than the model's window, and than the
    `num_kv_tokens` that its KV cache holds.
    """
    if seq.embedding is not None and not makes_vectors:
        return RowError(
            "unsupported_model",
            "This model does not show its last hidden states, so no vector can be made of "
            "them. Use another model for embeddings.",
            None,
            400,
        )
    if seq.adapter and seq.adapter not in loaded.adapters:
        return RowError(
            "model_not_found",
            f"This worker has no adapter {seq.adapter}. Start it with --adapter.",
            status_code=500,
            type="server_error",
        )
    if not seq.num_prompt_tokens:
        return RowError("invalid_request", "The prompt has no tokens.", "prompt", 400)
    if not 0 <= min(seq.token_ids) <= max(seq.token_ids) < loaded.vocab_size:
        return RowError(
            "invalid_request",
            "The prompt has a token id that this model does not know: its ids are 0 to "
            f"{loaded.vocab_size - 1}.",
            "prompt",
            400,
        )
    # A prompt that is only scored needs no room for a token behind it, nor for its last one.
    if seq.num_tokens_to_compute > max_model_len - (seq.finish_reason is None):
        return RowError(
            "context_length_exceeded",
            f"The prompt has {seq.num_prompt_tokens} tokens, and this worker takes "
            f"{max_model_len} for prompt and output together (the model knows "
            f"{loaded.max_model_len}, the KV cache holds {num_kv_tokens}). Shorten the prompt, or "
            "give the worker more memory.",
            "prompt",
            400,
        )
    return None
