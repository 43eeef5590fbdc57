"""Rows to score, as texts: the same for every engine. Cut from the prompts of the workloads."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

from tokenizers import Tokenizer
from workloads import load_workload

#: (context, its continuations)
ScoreRow = tuple[str, list[str]]


def choice_rows(folder: Path, num_rows: int) -> list[ScoreRow]:
    """Contexts of about 300 tokens that share nothing, each with four choices of 2 to 12 words."""
    words = _words(folder)
    chance = random.Random(1)
    rows = []
    for _ in range(num_rows):
        context = _cut(folder, words, 300)
        choices = [" " + " ".join(itertools.islice(words, chance.randint(2, 12))) for _ in range(4)]
        rows.append((context, choices))
    return rows


def plain_rows(folder: Path, num_rows: int) -> list[ScoreRow]:
    """Contexts of about 120 tokens, each with one continuation of about 40."""
    words = _words(folder)
    return [(_cut(folder, words, 120), [" " + _cut(folder, words, 40)]) for _ in range(num_rows)]


def _words(folder: Path) -> itertools.chain[str]:
    """Real text without an end, in an order of its own each time round."""
    tokenizer = _tokenizer(folder)
    texts = [tokenizer.decode(request.prompt_ids) for request in load_workload("w1")]
    words = [word for text in texts for word in text.split()]
    chance = random.Random(0)

    def rounds() -> itertools.chain[str]:
        while True:
            begin = chance.randrange(len(words))
            yield from words[begin : begin + 40]

    return itertools.chain(rounds())


def _cut(folder: Path, words: itertools.chain[str], num_tokens: int) -> str:
    tokenizer = _tokenizer(folder)
    text: list[str] = []
    while len(tokenizer.encode(" ".join(text)).ids) < num_tokens:
        text.extend(itertools.islice(words, 5))
    return " ".join(text)


def _tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))
