"""Data sets: rows from files, frames and iterators, prompts over their columns, rows to files.

    rows = read_rows("reviews.parquet")
    prompt = Template("Review: {text}\nSentiment:")
    write_rows("prompts.csv", ({"prompt": prompt.render(row)} for row in rows))

A row is a dict from column to value. Everything streams; what needs a package beyond the light
installation imports it when it is called, and says which extra has it.
"""

from __future__ import annotations

from gristmill.data.rows import Row, Source, read_rows
from gristmill.data.template import Template
from gristmill.data.write import write_rows

__all__ = ["Row", "Source", "Template", "read_rows", "write_rows"]
