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


class WithSpecialTokens:
    """A Decoder that writes control tokens out."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return self._decoder.decode(ids, skip_special_tokens=False)


class StopStrings:
    """Watches the text of one row for its stop strings, as tokens arrive.

    Those that are complete within the first `min_tokens` tokens do not count. State is rebuilt from
    the ids alone, so a resumed row behaves as if it had never stopped.
    """

    def __init__(self, decoder: Decoder, stop: Sequence[str], min_tokens: int = 0) -> None:
        self._decoder = decoder
        self._stop = tuple(stop)
        self._longest = max(map(len, self._stop))
        self._min_tokens = min_tokens
        #: Characters in which no stop string counts that ends within them.
        self._num_exempt: int | None = None
        #: Ids whose characters are complete: a later token cannot change their text.
        self._num_settled = 0
        #: Characters of the settled ids, and the last of them.
        self._num_chars = 0
        self._tail = ""

    def feed(self, token_ids: Sequence[int]) -> bool:
        """Look at all ids of the row so far; True as soon as a stop string is complete."""
        if len(token_ids) <= self._min_tokens:
            return False
        if self._num_exempt is None:
            self._num_exempt = _num_exempt(self._decoder, token_ids, self._min_tokens)
        begin = max(0, self._num_settled - _CONTEXT)
        before = self._decoder.decode(token_ids[begin : self._num_settled])
        now = self._decoder.decode(token_ids[begin:])
        # Incomplete characters show as U+FFFD at the end; the text before them is final.
        fresh = now.rstrip(_REPLACEMENT)[len(before) :]
        text = self._tail + fresh
        exempt = self._num_exempt - (self._num_chars - len(self._tail))
        if _find(text, self._stop, exempt):
            return True
        if not now.endswith(_REPLACEMENT) or len(token_ids) - self._num_settled > _MAX_PENDING:
            self._tail = text[-self._longest :]
            self._num_settled = len(token_ids)
            self._num_chars += len(fresh)
        return False


def final_text(
    decoder: Decoder,
    token_ids: Sequence[int],
    stop: Sequence[str],
    *,
    min_tokens: int = 0,
    include_stop: bool = False,
) -> str:
    """The exact decode of all ids, up to the earliest stop string, or to its end (`include_stop`).

    Special tokens have no text; bytes that no character came of show as U+FFFD.
    """
    text = decoder.decode(list(token_ids))
    found = _find(text, stop, _num_exempt(decoder, token_ids, min_tokens) if stop else 0)
    if found is None:
        return text
    begin, end = found
    return text[: end if include_stop else begin]


def echoed(
    decoder: Decoder, prompt_ids: Sequence[int], token_ids: Sequence[int], answer: str
) -> str:
    """The text of the prompt and, behind it, the answer, which `token_ids` gave.

    Both are decoded together, since some vocabularies lose a space where a text begins; but a
    character that begins in the prompt and ends in the answer is shown as broken.
    """
    alone = decoder.decode(list(token_ids))
    together = decoder.decode([*prompt_ids, *token_ids])
    if together.endswith(alone):
        return together[: len(together) - len(alone)] + answer
    return decoder.decode(list(prompt_ids)) + answer


def text_offsets(decoder: Decoder, token_ids: Sequence[int]) -> list[int]:
    """Where in the text each token begins, in characters.

    A token that begins inside a character has the place of that character; one without text, such
    as a special token, the place of what follows it.
    """
    offsets = [0] if token_ids else []
    for i in range(len(token_ids) - 1):
        begin = max(0, i - _CONTEXT)
        before, now = (decoder.decode(token_ids[begin:end]) for end in (i, i + 1))
        grown = len(now.rstrip(_REPLACEMENT)) - len(before.rstrip(_REPLACEMENT))
        offsets.append(offsets[-1] + grown)
    return offsets


def _find(text: str, stop: Sequence[str], exempt: int) -> tuple[int, int] | None:
    """Begin and end of the earliest stop string that ends behind the first `exempt` characters.

    Of two that begin together the shorter one counts: it was complete first.
    """
    found = [(text.find(s, max(0, exempt - len(s) + 1)), len(s)) for s in stop]
    return min(((at, at + length) for at, length in found if at >= 0), default=None)


def _num_exempt(decoder: Decoder, token_ids: Sequence[int], min_tokens: int) -> int:
    if not min_tokens:
        return 0
    return len(decoder.decode(token_ids[:min_tokens]).rstrip(_REPLACEMENT))
