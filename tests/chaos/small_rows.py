"""The rows of the small world's batches, and what has to become of each of them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from local_run import BYTES, make_line
from small_engine import FAILS, KILLS, answer_to

from gristmill.requests.window import RowSeeds
from gristmill.types import Job, Prompt, Row, SamplingParams
from gristmill_worker.choices import computed_choices, of_choice


@dataclass(frozen=True)
class SmallRow:
    custom_id: str
    body: dict[str, Any]

    @property
    def line(self) -> str:
        return make_line(self.custom_id, **self.body)

    @property
    def code(self) -> str | None:
        """Of its error, whatever happens; None if it has an answer."""
        prompt = self.body["prompt"]
        if "best_of" in self.body:
            return "refused"
        return "worker_crashed" if KILLS in prompt else "too_hard" if FAILS in prompt else None

    def texts(self, batch_seed: str) -> list[str]:
        """Of its Choices."""
        ids = tuple(BYTES.index("\u0120" if char == " " else char) for char in self.body["prompt"])
        seed = self.body.get("seed", RowSeeds(batch_seed).of(self.custom_id))
        temperature = self.body.get("temperature", 1.0)
        params = SamplingParams(
            self.body["max_tokens"],
            temperature=temperature,
            seed=seed if temperature else 0,
            n=self.body.get("n", 1),
        )
        job = Job((Row(0, self.custom_id),), (Prompt(ids),), params)
        computed = computed_choices(job)
        texts = [answer_to(of_choice(job, idx)) for idx in computed]
        return texts * (params.n // len(texts))


def refused_text(row: SmallRow) -> str:
    """What the refusal of a row names."""
    return "best_of" if "best_of" in row.body else "\0"


def make_rows(rng: random.Random, num_rows: int, *, kills: float) -> list[SmallRow]:
    """`kills` is the share of rows that kill whoever computes them."""
    rows = []
    for idx in range(num_rows):
        prompt = f"Say {rng.choice([idx, 1, 7])}"
        if rng.random() < 0.2:
            prompt += " to all of them" * 11  # longer than what the small workers take
        drawn = rng.random()
        prompt += KILLS if drawn < kills else FAILS if drawn < kills + 0.08 else ""
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": rng.choice([1, 6, 24])}
        kind = rng.choice(["greedy", "greedy", "seeded", "derived", "several"])
        if kind == "greedy":
            body["temperature"] = 0
        elif kind == "seeded":
            body["seed"] = rng.randrange(5)
        elif kind == "several":
            body |= {"n": rng.choice([2, 3]), "seed": rng.randrange(5)}
        if rng.random() < 0.05:
            body["best_of"] = 5
        rows.append(SmallRow(f"r{idx}", body))
    return rows
