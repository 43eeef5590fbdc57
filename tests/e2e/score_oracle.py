"""What scores must be: the model alone, a plain pass in float64, and the rows that are scored."""

from __future__ import annotations

import math
from pathlib import Path

LABELS = ("positive", "negative")


def rows(count: int = 24) -> list[dict[str, str]]:
    words = ["Paris", "a name", "naïve 😀", "number of some", "what it says, is the test"]
    return [
        {"id": f"r{i}", "text": f"{words[i % 5]} {i}", "sentiment": LABELS[i * i % 3 % 2]}
        for i in range(count)
    ]


class Oracle:
    """The model alone: a plain pass in float64."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._torch = torch
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()

    def logprobs(self, ids: list[int], start: int) -> list[float]:
        with self._torch.inference_mode():
            logits = self._model(self._torch.tensor([ids])).logits[0].log_softmax(-1)
        return [float(logits[i - 1, ids[i]]) for i in range(start, len(ids))]

    def continuation(self, context: str, text: str) -> float:
        own = len(self.tokenizer.encode(context))
        return math.fsum(self.logprobs(self.tokenizer.encode(context + text), own))
