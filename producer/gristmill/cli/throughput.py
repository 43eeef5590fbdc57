"""Remembers how fast each model ran on this machine, so that a dry run can estimate the time."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

#: A run that decoded less says little about the speed of a long one.
MIN_TOKENS = 100


class ThroughputLog:
    """Generated tokens per second of the last run of each model: `{cache_dir}/throughput.json`.

    A file that is missing or damaged counts as empty: it only ever feeds an estimate.
    """

    def __init__(self, cache_dir: Path) -> None:
        self._path = cache_dir / "throughput.json"

    def tokens_per_s(self, model_name: str) -> float | None:
        """The last measured speed, or None when this model has not run here yet."""
        rate = self._read().get(model_name)
        return rate if isinstance(rate, (int, float)) and rate > 0 else None

    def record(self, model_name: str, *, generated_tokens: int, tokens_per_s: float) -> None:
        """Keep the speed of a finished run, unless the run was too short to tell."""
        if generated_tokens < MIN_TOKENS or tokens_per_s <= 0:
            return
        rates = {**self._read(), model_name: round(tokens_per_s, 2)}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Two runs may end at once: a rename never leaves half a file.
        handle, name = tempfile.mkstemp(dir=self._path.parent, prefix="throughput.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(rates, file, indent=1, sort_keys=True)
        os.replace(name, self._path)

    def _read(self) -> dict[str, object]:
        try:
            rates = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return rates if isinstance(rates, dict) else {}
