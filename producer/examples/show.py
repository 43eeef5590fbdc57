"""Prints some answers of a run beside their questions: show.py REQUESTS.jsonl ANSWERS.jsonl."""

from __future__ import annotations

import json
import sys

SHOWN = 6


def main(requests_path: str, answers_path: str) -> None:
    """Join the two files on custom_id and print some rows, spread evenly over the input."""
    with open(answers_path, encoding="utf-8") as lines:
        answers = {row["custom_id"]: row["response"]["body"] for row in map(json.loads, lines)}
    with open(requests_path, encoding="utf-8") as lines:
        answered = [row for row in map(json.loads, lines) if row["custom_id"] in answers]
    for row in answered[:: max(1, len(answered) // SHOWN)][:SHOWN]:
        choice = answers[row["custom_id"]]["choices"][0]
        print(f"\n[{row['custom_id']}] {row['body']['messages'][-1]['content']}")
        print(f"  -> {choice['message']['content'].strip()}  ({choice['finish_reason']})")
    print(f"\nAll {len(answers)} answers are in {answers_path}.")


if __name__ == "__main__":
    main(*sys.argv[1:])
