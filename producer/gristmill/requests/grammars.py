"""Whether a grammar can be honoured: compiled once with the model's tokenizer, before any row runs.

A grammar is a program of the caller's, so its size and what compiling may cost are bounded.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from gristmill.errors import RowRefused
from gristmill.grammar import make_matcher, make_tokenizer, readable, schema_problem
from gristmill.types import Grammar, GrammarKind

if TYPE_CHECKING:
    from llguidance import LLTokenizer

#: A longer grammar is refused.
MAX_GRAMMAR_BYTES = 256 * 1024
#: Verdicts that are remembered, each of a few hundred bytes.
_MAX_VERDICTS = 4096


class GrammarCheck:
    """The verdicts on grammars for one model. Threads may share it."""

    def __init__(self, tokenizer_json: Callable[[], str], vocab_size: int) -> None:
        self._tokenizer_json = tokenizer_json
        self._vocab_size = vocab_size
        self._verdicts: OrderedDict[bytes, str | None] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, grammar: Grammar, *, param: str) -> None:
        """Raises RowRefused with the reason when `grammar` cannot be honoured exactly."""
        text = grammar.text.encode(errors="replace")
        if len(text) > MAX_GRAMMAR_BYTES:
            raise RowRefused(
                f"`{param}` has {len(text):,} bytes of grammar, and {MAX_GRAMMAR_BYTES:,} are the "
                "most. Shorten it: name what repeats once, under `$defs`.",
                param=param,
                code="grammar_too_large",
            )
        key = hashlib.sha256(f"{grammar.kind}\0{grammar.strict}\0".encode() + text).digest()
        with self._lock:
            if key not in self._verdicts:
                self._verdicts[key] = self._problem(grammar)
            self._verdicts.move_to_end(key)
            problem = self._verdicts[key]
            while len(self._verdicts) > _MAX_VERDICTS:
                self._verdicts.popitem(last=False)
        if problem is not None:
            raise RowRefused(f"`{param}`: {problem}", param=param, code="invalid_grammar")

    def _problem(self, grammar: Grammar) -> str | None:
        try:
            tokenizer = self._tokenizer
        except ValueError as error:
            return (
                "structured output needs a tokenizer that llguidance can read, and this model's is "
                f"none: {readable(str(error))}. Ask for JSON in the prompt instead."
            )
        if problem := self._compile(tokenizer, grammar):
            hint = "Change or remove that part of the schema; see README.md#structured-output."
            if grammar.kind is not GrammarKind.JSON_SCHEMA:
                hint = "See README.md#structured-output for how it is written."
            return f"the grammar does not compile: {problem}. {hint}"
        return None

    def _compile(self, tokenizer: LLTokenizer, grammar: Grammar) -> str | None:
        try:
            matcher = make_matcher(tokenizer, grammar)
        except ValueError as error:
            return readable(str(error))
        if not matcher.is_error():
            matcher.compute_bitmask()  # some grammars show only here that they admit nothing
        if matcher.is_error():
            return readable(matcher.get_error())
        return schema_problem(grammar.text) if grammar.kind is GrammarKind.JSON_SCHEMA else None

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        return make_tokenizer(self._tokenizer_json(), vocab_size=self._vocab_size, eos_token_ids=())
