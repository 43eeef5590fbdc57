"""A tokenizer for the tiny models: single ASCII characters and some longer pieces of JSON."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tiny import EOS, VOCAB_SIZE
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from gristmill_worker.models.loader import LoadedModel

_NAMES = ("<pad>", "<s>", "</s>")
_MERGES = ('" :', '" ,', '{ "', "} ,", "a b", "ab c", "t rue", "t r", "tr u", "u e", "n u", "l l")


def ascii_tokenizer() -> Tokenizer:
    """Fewer tokens than the model has logits, as in many models."""
    singles = [chr(code) for code in range(0x21, 0x7F)] + ["\u0120"]  # as byte-level writes a space
    vocab = {token: i for i, token in enumerate([*_NAMES, *singles])}
    merges = [tuple(merge.split(" ")) for merge in _MERGES]
    known = [(left, right) for left, right in merges if {left, right} <= vocab.keys()]
    for left, right in known:
        vocab.setdefault(left + right, len(vocab))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=known))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in _NAMES])
    assert tokenizer.token_to_id("</s>") == EOS and len(vocab) < VOCAB_SIZE
    return tokenizer


def with_text(loaded: LoadedModel) -> Any:
    """The same model, whose tokens are characters."""
    return replace(loaded, tokenizer=ascii_tokenizer())
