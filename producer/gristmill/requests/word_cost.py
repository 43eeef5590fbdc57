"""How many tokens a model's tokenizer makes of the same text in several languages.

Tokens are what is paid for, and a tokenizer that was made for English may need four times as many
for another language.
"""

from __future__ import annotations

import json
from importlib.resources import files

from gristmill.requests.tokenise import Reading, Text, Tokeniser


def tokens_per_word(tokeniser: Tokeniser) -> dict[str, float]:
    """By language (ISO 639-1): tokens of article 1 of the Universal Declaration of Human Rights,
    for each of the 30 words that it has in English."""
    sample = json.loads(files(__package__).joinpath("same_text.json").read_text("utf-8"))
    languages = list(sample["texts"])
    encoded = tokeniser.encode([Text(sample["texts"][one], Reading.BARE) for one in languages])
    return {
        language: round(len(ids) / sample["num_words"], 2)
        for language, ids in zip(languages, encoded, strict=True)
    }
