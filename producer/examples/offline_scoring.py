"""Offline scoring: reviews in a CSV file get a sentiment beside each row, and a report about it.

    python producer/examples/offline_scoring.py                     # all 1,000 rows, the demo model
    python producer/examples/offline_scoring.py MODEL ROWS FOLDER   # some rows, another model

No server is needed: the model runs in this process. Interrupt it and start it again: it goes on.
The cells (# %%) can be run one by one in an editor or a notebook.
"""

# %%
from __future__ import annotations

import sys
from pathlib import Path

from gristmill.data import read_rows
from gristmill.score import (
    Choices,
    Embedded,
    Gold,
    Judge,
    Perplexity,
    Prompt,
    Template,
    report_files,
    score,
)

MODEL = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
NUM_ROWS = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
FOLDER = Path(sys.argv[3] if len(sys.argv) > 3 else ".")
REVIEWS = Path(__file__).with_name("reviews.csv")

# %% Which of two words does the model find likelier behind each review?
sentiment = Choices(
    Prompt(Template("Review: {text}\nThe sentiment of this review is "), chat=False),
    choices=(Template("positive"), Template("negative")),
    gold=Gold("sentiment"),
)
scored = FOLDER / "sentiment.csv"
report = score(REVIEWS, sentiment, Embedded(MODEL), output=scored, limit=NUM_ROWS)
for name, figure in report.figures.items():
    print(f"{name}: {figure.value:.3f} ({figure.low:.3f} to {figure.high:.3f})")
print("report:", report_files(scored)["html"])

# %% The rows of which the model is least sure
rows = sorted(read_rows(scored), key=lambda row: float(row["margin"]))
for row in rows[:3]:
    print(f"{float(row['confidence']):.2f} {row['prediction']}: {row['text']}")

# %% How satisfied is the writer, from 1 to 5? The expected value of the answer, not only the answer
satisfaction = Judge(
    Prompt(Template("{text}\n\nHow satisfied is the writer, from 1 to 5? Answer with the number.")),
    answers=("1", "2", "3", "4", "5"),
)
report = score(
    REVIEWS,
    satisfaction,
    Embedded(MODEL),
    output=FOLDER / "satisfaction.jsonl",
    limit=min(NUM_ROWS, 50),
)
print("mean satisfaction:", report.figures["expected answer"].value)

# %% Which reviews does the model find strangest?
report = score(
    REVIEWS,
    Perplexity(Template("{text}")),
    Embedded(MODEL),
    output=FOLDER / "perplexity.parquet",
    limit=min(NUM_ROWS, 50),
)
rows = sorted(read_rows(FOLDER / "perplexity.parquet"), key=lambda row: -row["token_perplexity"])
print(f"{rows[0]['token_perplexity']:.0f}: {rows[0]['text']}")
