"""Which tokens a row's grammar allows next. Masks of a step are computed while the model runs.

A matcher's state is a function of the row's token ids alone: it is told all of them and consumes
what is new, so a row that was preempted, or resumed elsewhere, goes on as if nothing had happened.
Whatever goes wrong in a grammar is that row's error. Tokens that a grammar forces are decoded like
all others (llguidance's fast-forward is not used).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gristmill.grammar import make_matcher, make_tokenizer, readable
from gristmill.types import Grammar
from gristmill_worker.upload import upload

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLTokenizer

#: One bit for each token, the lowest bit of a byte first.
Bits = np.ndarray[Any, np.dtype[np.uint8]]


class GrammarState:
    """Where one row stands in its grammar."""

    def __init__(self, grammar: Grammar, grammars: Grammars, num_prompt_tokens: int) -> None:
        self._grammar = grammar
        self._grammars = grammars
        self._num_taken = num_prompt_tokens
        self._matcher: LLMatcher | None = None
        self._mask: Bits | None = None
        #: What went wrong; such a row can have no token any more.
        self.error: str | None = None

    def take(self, token_ids: Sequence[int]) -> bool:
        """Goes on to the end of all ids of the row; whether nothing can follow there."""
        matcher = self.matcher()
        if matcher is None:
            return False
        new, self._num_taken = list(token_ids[self._num_taken :]), len(token_ids)
        matcher.consume_tokens(new)
        return not self.fails() and matcher.is_stopped()

    def allowed(self, end_ids: Sequence[int], *, may_end: bool) -> Bits:
        """The tokens that may come next, of the mask that was computed last.

        `end_ids` end the row: they are allowed where the grammar is complete and `may_end` says so,
        or nothing else is possible there.
        """
        if self._mask is None or self._matcher is None or self.error is not None:
            return np.zeros(self._grammars.num_mask_bytes, np.uint8)
        mask, self._mask = self._mask, None
        eos_token_ids = self._grammars.tokenizer.eos_tokens
        _set_bits(mask, (*eos_token_ids, *end_ids), to=False)
        if self._matcher.is_accepting():
            if not mask.any():
                _set_bits(mask, end_ids or eos_token_ids, to=True)
            elif may_end:
                _set_bits(mask, end_ids, to=True)
        return mask

    def matcher(self) -> LLMatcher | None:
        """Made when it is first needed, from the row's grammar; None where that is in error."""
        if self.error is None and self._matcher is None:
            try:
                self._matcher = make_matcher(self._grammars.tokenizer, self._grammar)
            except Exception as error:  # whatever a foreign grammar does to a foreign library
                self.error = readable(str(error) or type(error).__name__)
            else:
                self.fails()
        return self._matcher if self.error is None else None

    def fails(self) -> bool:
        if self._matcher is not None and self._matcher.is_error():
            self.error = readable(self._matcher.get_error())
        return self.error is not None

    def set_mask(self, mask: Bits) -> None:
        self._mask = mask


class Grammars:
    """The grammars of one Engine's rows. Costs nothing before a row brings one."""

    def __init__(self, tokenizer: Any, *, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self._hf_tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids

    def state(self, grammar: Grammar | None, *, num_prompt_tokens: int) -> GrammarState | None:
        """The state of a row that has generated nothing."""
        return None if grammar is None else GrammarState(grammar, self, num_prompt_tokens)

    @property
    def num_mask_bytes(self) -> int:
        """As many as the model's tokens need."""
        return -(-self._vocab_size // 8)

    @cached_property
    def tokenizer(self) -> LLTokenizer:
        """Raises what llguidance raises for a tokenizer that it cannot read."""
        return make_tokenizer(
            self._hf_tokenizer.to_str(),
            # Some tokenizers know more tokens than their model.
            vocab_size=max(self._vocab_size, self._hf_tokenizer.get_vocab_size()),
            eos_token_ids=self._eos_token_ids,
        )

    @contextmanager
    def masks_for(self, states: Sequence[GrammarState | None]) -> Iterator[None]:
        """Computes the next masks of `states` while the body runs, on another thread; they are
        there when it ends. None stands for a row without a grammar."""
        asking = [state for state in states if state is not None]
        if not asking:
            yield
            return
        computing = self._thread.submit(self._compute, asking)
        try:
            yield
        finally:
            computing.result()

    def _compute(self, states: Sequence[GrammarState]) -> None:
        matchers = [(matcher, i) for i, s in enumerate(states) if (matcher := s.matcher())]
        if not matchers:
            return
        num_bytes = -(-self.tokenizer.vocab_size // 32) * 4
        masks = np.zeros((len(states), num_bytes), np.uint8)
        self._fill(matchers, masks)
        for state, mask in zip(states, masks, strict=True):
            if not state.fails():
                state.set_mask(mask[: self.num_mask_bytes])

    def _fill(self, matchers: list[tuple[LLMatcher, int]], masks: Bits) -> None:
        """masks[i] for each (matcher, i): on several threads, without holding the interpreter.

        What a matcher meets is kept in it as its error; nothing is known to be raised here. If it
        is all the same, it may be any row's doing: they are asked one by one.
        """
        num_rows, num_bytes = masks.shape
        try:
            self._executor.unsafe_compute_mask_ptr(matchers, masks.ctypes.data, num_bytes, num_rows)
        except Exception:
            for matcher, i in matchers:
                masks[i] = 0
                with suppress(Exception):  # such a row is left with no token
                    matcher.unsafe_compute_mask_ptr(masks[i].ctypes.data, num_bytes)

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, "gristmill-grammar")

    @cached_property
    def _executor(self) -> LLExecutor:
        from llguidance import LLExecutor

        return LLExecutor(num_threads=torch.get_num_threads())


def _set_bits(mask: Bits, token_ids: Sequence[int], *, to: bool) -> None:
    for token_id in token_ids:
        place, bit = token_id // 8, np.uint8(1 << token_id % 8)
        if place < len(mask):  # else the model has no such token
            mask[place] = mask[place] | bit if to else mask[place] & ~bit


def apply_masks(
    logits: torch.Tensor,  # [S, V] float32, changed in place
    rows: Sequence[tuple[int, Bits]],
) -> None:
    """Makes impossible what the masks do not allow. `rows` has an index into `logits` for each.

    Something is added rather than set, so that NaN stays NaN.
    """
    if not rows:
        return
    device, vocab_size = logits.device, logits.shape[1]
    masks = upload(torch.from_numpy(np.stack([mask for _, mask in rows])), device)
    penalty = _penalties(device).index_select(0, masks.flatten().int())
    penalty = penalty.view(len(rows), -1)[:, :vocab_size]
    row_idx = [i for i, _ in rows]
    if row_idx == list(range(len(logits))):
        logits += penalty
    else:
        logits.index_add_(0, upload(torch.tensor(row_idx), device), penalty)


def _penalties(device: torch.device) -> torch.Tensor:  # [256, 8] float32
    """What each value of a byte adds to the logits of its eight tokens."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return upload(torch.from_numpy(np.where(bits, np.float32(0), np.float32("-inf"))), device)
