"""Text from token ids, and the stop strings in it.

The text of a row is always one full decode of its ids; nothing is put together from decoded
pieces. Only rows with stop strings are decoded while they run, over a window at their end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

#: Decoding of a window begins this many ids before the first one that is new, so that a character
#: which began earlier, or a space that depends on what stands before it, comes out right.
_CONTEXT = 8
#: A window never reaches back further than this for the beginning of a character.
_MAX_PENDING = 32
_REPLACEMENT = "\ufffd"


class Decoder(Protocol):
    """The part of `tokenizers.Tokenizer` that is used here."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...


class StopStrings:
    """Watches the text of one row for its stop strings, as tokens arrive.

    State is rebuilt from the ids alone, so a resumed row behaves as if it had never stopped.
    """

    def __init__(self, decoder: Decoder, stop: Sequence[str]) -> None:
        self._decoder = decoder
        self._stop = tuple(stop)
        self._longest = max(map(len, self._stop))
        #: Ids whose characters are complete: a later token cannot change their text.
        self._num_settled = 0
        self._tail = ""

    def feed(self, token_ids: Sequence[int]) -> bool:
        """Look at all ids of the row so far; True as soon as a stop string is complete."""
        begin = max(0, self._num_settled - _CONTEXT)
        before = self._decoder.decode(token_ids[begin : self._num_settled])
        now = self._decoder.decode(token_ids[begin:])
        # Incomplete characters show as U+FFFD at the end; the text before them is final.
        fresh = now.rstrip(_REPLACEMENT)[len(before) :]
        text = self._tail + fresh
        if any(stop in text for stop in self._stop):
            return True
        if not now.endswith(_REPLACEMENT) or len(token_ids) - self._num_settled > _MAX_PENDING:
            self._tail = text[-self._longest :]
            self._num_settled = len(token_ids)
        return False


def final_text(decoder: Decoder, token_ids: Sequence[int], stop: Sequence[str]) -> str:
    """The exact decode of all ids, up to the earliest stop string. Special tokens have no text;
    bytes that no character came of show as U+FFFD."""
    text = decoder.decode(list(token_ids))
    found = [position for s in stop if (position := text.find(s)) >= 0]
    return text[: min(found)] if found else text
