"""Keeps a tokenizer's control tokens out of reach of user text, without changing any other id.

A chat template writes control tokens as text, so text of a user that spells one would be read as
one. Control tokens are the added tokens marked `special`; the others (such as `<think>`) are
ordinary words with an id of their own, and templates look for them in what users write.

    user text    hi<|im_end|>
    guard        hi G2                            G2 stands for the token that the user spelled
    template     <|im_start|>user: hi G2 <|im_end|>
    seal         P1 user: hi<|im_end|> P2         P1 and P2 stand for the template's own

The sealed text goes to a second tokenizer that knows its control tokens only by the names P1, P2.
It is the first one in all else, so ordinary text has the same ids in both.
"""

from __future__ import annotations

import json
import re
import secrets
from typing import Any

from tokenizers import Tokenizer

from gristmill.errors import ModelUnsupported

_PRIVATE_USE = [chr(code) for code in range(0xE000, 0xF900)]
_PRIVATE_USE_PLANE = 0xF0000


class ControlTokens:
    """The control tokens of one tokenizer. Immutable, so threads may share it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        special = [(token_id, token) for token_id, token in added.items() if token.special]
        names = [token.content for _, token in special]
        self._id_of = {token.content: token_id for token_id, token in special}
        # Private-use characters pass through templates and normalisation unchanged. The random
        # part cannot be guessed, so no input can contain a stand-in; the ids do not depend on it.
        guard, seal = _nonce(), _nonce()
        self._guard = {n: guard + chr(_PRIVATE_USE_PLANE + i) for i, n in enumerate(names)}
        self._seal = {n: seal + chr(_PRIVATE_USE_PLANE + i) for i, n in enumerate(names)}
        self._unguard = {stand_in: name for name, stand_in in self._guard.items()}
        self._spelled = _any_of([_pattern(token) for _, token in special])
        self._guarded = re.compile(f"{guard}.", re.DOTALL)
        # Tokens that are looked for after normalisation can be spelled in ways not seen here.
        self._hidden = tokenizer.normalizer is not None and any(t.normalized for _, t in special)

    def spelled_in(self, text: str) -> bool:
        """Whether the tokenizer might read a control token in `text`."""
        return self._hidden or self._spelled.search(text) is not None

    def guard(self, text: str) -> str:
        """User text whose spelled-out control tokens pass through a template as something else."""
        return self._spelled.sub(lambda match: self._guard[match[0]], text)

    def seal(self, rendered: str) -> str:
        """Renames the template's own control tokens, then gives the users' theirs back."""
        renamed = self._spelled.sub(lambda match: self._seal[match[0]], rendered)
        return self._guarded.sub(lambda match: self._unguard[match[0]], renamed)

    def sealed_tokenizer(self) -> Tokenizer:
        """The tokenizer for sealed text. Building it takes a fraction of a second."""
        config = json.loads(self._tokenizer.to_str())
        for token in config["added_tokens"]:
            token["content"] = self._seal.get(token["content"], token["content"])
        _rename_in_vocabulary(config["model"], self._seal)
        sealed = Tokenizer.from_str(json.dumps(config))
        for name, token_id in self._id_of.items():
            if sealed.token_to_id(self._seal[name]) != token_id:
                raise ModelUnsupported(
                    f"The control token {name!r} of this tokenizer cannot be told apart from text: "
                    f"it has id {token_id}, but {sealed.token_to_id(self._seal[name])} under "
                    "another name. Save the tokenizer anew with save_pretrained()."
                )
        return sealed


def _rename_in_vocabulary(model: dict[str, Any], names: dict[str, str]) -> None:
    """Takes the control tokens out of reach of the model too, which may know them as words.

    A unigram model, or a BPE with ignore_merges, would find them whole in its vocabulary.
    """
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    if isinstance(model["vocab"], list):
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
        return
    model["vocab"] = {names.get(piece, piece): idx for piece, idx in model["vocab"].items()}
    if "merges" in model:
        prefix = model.get("continuing_subword_prefix") or ""
        model["merges"] = [
            (left, right)
            for left, right in model["merges"]
            if not {left, right, left + right.removeprefix(prefix)} & names.keys()
        ]


def _pattern(token: Any) -> str:
    content: str = re.escape(token.content)
    return rf"(?<!\w){content}(?!\w)" if token.single_word else content


def _any_of(patterns: list[str]) -> re.Pattern[str]:
    # The longest first: the tokenizer too takes the longest token that matches.
    return re.compile("|".join(sorted(patterns, key=len, reverse=True)) or "(?!)")


def _nonce() -> str:
    return "".join(secrets.choice(_PRIVATE_USE) for _ in range(8))
