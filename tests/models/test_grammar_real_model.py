"""SmolLM2 with JSON schemas: every document is whole and valid, or says that it was cut."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema_rs
import pytest
from drive import make_engine, run
from transformers import AutoTokenizer

from gristmill.types import FinishReason, Grammar, GrammarKind, Job, Prompt, Row, SamplingParams
from gristmill_worker.models.loader import load_model

pytestmark = pytest.mark.real_model

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["city", "river", "person"]},
        "pop": {"type": "integer", "minimum": 0, "maximum": 20_000_000_000},
    },
    "required": ["kind", "pop"],
    "additionalProperties": False,
}


def test_B27_every_document_of_a_real_model_is_valid(smollm2_folder: Path) -> None:
    loaded = load_model(smollm2_folder, max_model_len=128)
    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA), strict=True)
    jobs = []
    for i, name in enumerate(["Paris", "the Rhine", "Ada Lovelace", "Ulm"]):
        ids = tokenizer.encode(f"<|im_start|>user\n{name} as JSON<|im_end|>\n<|im_start|>assistant")
        sampling = SamplingParams(32, temperature=i / 2, seed=i, grammar=grammar)
        jobs.append(Job((Row(i, name),), (Prompt(tuple(ids)),), sampling))
    cut = replace(jobs[0], params=replace(jobs[0].params, max_tokens=3))

    ends = run(
        make_engine(loaded, max_num_batched_tokens=128, block_size=16),
        [*((job.rows[0].custom_id, job) for job in jobs), ("cut", cut)],
    )

    assert ends["cut"].finish_reason is FinishReason.LENGTH
    assert ends["Paris"].text.startswith(ends.pop("cut").text)
    for end in ends.values():
        assert end.finish_reason is FinishReason.STOP and end.error is None
        jsonschema_rs.validate(SCHEMA, json.loads(end.text))
        assert end.text == json.dumps(json.loads(end.text), separators=(",", ":"))
