"""The bytes that a token stands for. Many tokens are no text by themselves, but parts of it."""

from __future__ import annotations

import json
import re
from typing import Any

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """Reads the vocabulary of a `tokenizers.Tokenizer` as its decoder does.

    Byte-level vocabularies write each byte as a character, sentencepiece ones write a space as
    U+2581 and lone bytes as <0xE2>. A special token stands for its name, although it has no text in
    an answer. Ids that the tokenizer does not know have no bytes.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, bytes] = {}
        self._kinds: set[str] | None = None
        self._added: dict[int, Any] = {}

    def of(self, token_id: int) -> bytes:
        """The bytes of one token."""
        if token_id not in self._known:
            self._known[token_id] = self._read(token_id)
        return self._known[token_id]

    def _read(self, token_id: int) -> bytes:
        if self._kinds is None:
            self._kinds = _decoder_kinds(self._tokenizer)
            self._added = (
                self._tokenizer.get_added_tokens_decoder()
                if hasattr(self._tokenizer, "get_added_tokens_decoder")
                else {}
            )
        if token_id in self._added:
            return str(self._added[token_id].content).encode()
        if not self._kinds:
            return str(self._tokenizer.decode([token_id])).encode()
        token: str | None = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if "ByteLevel" in self._kinds and all(char in _BYTE_OF for char in token):
            return bytes(_BYTE_OF[char] for char in token)
        if "ByteFallback" in self._kinds and (byte := _BYTE.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        return token.replace("\u2581", " ").encode()


def _decoder_kinds(tokenizer: Any) -> set[str]:
    """The decoders of a tokenizer that is known here; none for others, which decode one by one."""
    if not hasattr(tokenizer, "to_str"):
        return set()
    # Its pickled state is its part of tokenizer.json; to_str would write the vocabulary as well.
    decoder = json.loads(tokenizer.decoder.__getstate__()) if tokenizer.decoder else {}
    kinds = {str(part["type"]) for part in decoder.get("decoders", [decoder]) if "type" in part}
    return kinds if kinds & {"ByteLevel", "ByteFallback", "Metaspace"} else set()


def _byte_characters() -> dict[str, int]:
    """How byte-level vocabularies write bytes (GPT-2): printable ones as themselves, the others as
    the characters from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + place): byte for place, byte in enumerate(others)
    }


_BYTE_OF = _byte_characters()
