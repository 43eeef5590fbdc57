"""Fixtures that every folder of tests shares."""

from __future__ import annotations

import os

# No test may reach for a model hub; the variables must be set before transformers is imported.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["TOKENIZERS_PARALLELISM"] = "true"
