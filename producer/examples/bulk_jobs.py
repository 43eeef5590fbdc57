"""Bulk jobs: a table becomes prompts, prompts become answers, answers stand behind their rows.

Cell by cell in a notebook or an editor, or as a whole, beside `gristmill up --model smollm2-135m`:

    gristmill login                             # keeps URL and key; or set GRISTMILL_API_KEY
    python producer/examples/bulk_jobs.py
"""

# %% The service: that of `gristmill login`, or of GRISTMILL_BASE_URL and GRISTMILL_API_KEY.
import os
import tempfile
from pathlib import Path

import gristmill

client = gristmill.Client()
MODEL = os.environ.get("MODEL", "smollm2-135m")
#: A model without a chat template takes /v1/completions.
ENDPOINT = os.environ.get("ENDPOINT", "/v1/chat/completions")
folder = Path(tempfile.mkdtemp(prefix="bulk-jobs-"))

# %% Rows: dicts, a CSV or Parquet file, a DataFrame, a datasets.Dataset, an iterator, an s3:// URL.
reviews = folder / "reviews.csv"
reviews.write_text(
    "id,stars,text\n"
    "r1,5,It ran for a week and lost nothing.\n"
    "r2,1,The box was empty.\n"
    '"r3",3,"Good, but it took a day to set up."\n'
)

# %% What it would take: exact prompt tokens, what is wrong, by line. Nothing runs.
asked = {
    "model": MODEL,
    "endpoint": ENDPOINT,
    "template": "Review: {text}\nIs it happy or unhappy? One word:",
    "id_column": "id",
    "max_tokens": 8,
    "temperature": 0,
}
estimate = client.estimate(reviews, **asked)
print(f"{estimate.request_counts.total} rows, {estimate.input_tokens} prompt tokens")

# %% One call from rows to a batch. Large data sets are read in flat memory and cut where they must.
handle = client.submit(reviews, **asked, metadata={"example": "bulk_jobs"})
print(handle)

# %% Rows as they come, while the batch runs. `row.cursor` goes on behind a row, after a crash too.
for row in handle.results(ordered=False):
    print(row.custom_id, row.text or row.error, row.cursor)

# %% Or wait, with a progress bar, and take all of them in the order of the input.
state = handle.wait()
print(state.status, f"{state.completed} answered, {state.failed} failed")

# %% Answers behind their rows; the name says the format: .jsonl, .csv, .parquet. Interrupted, it
# goes on when it is called again, and what came is checked.
handle.download(folder / "answers.csv", join=reviews, id_column="id")
print((folder / "answers.csv").read_text().splitlines()[0])

# %% In another process the ids are enough.
again = client.handle(*handle.ids)
print(again.status().status)

# %% Rows that failed run again as a new batch, with the same seed.
if state.failed:
    print(again.retry_failed().wait().status)
