"""Documents of random schemas: each that ends satisfies its schema."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
from ascii_tokenizer import with_text
from drive import make_engine, run
from grammar_jobs import job, schema
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.types import FinishReason

SCALARS: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.tuples(st.integers(-30, 30), st.integers(0, 200)).map(
        lambda pair: {"type": "integer", "minimum": pair[0], "maximum": pair[0] + pair[1]}
    ),
    st.lists(st.integers() | st.text("abc", max_size=3), min_size=1, max_size=3).map(
        lambda values: {"enum": values}
    ),
    st.integers(0, 4).map(lambda length: {"type": "string", "maxLength": length}),
    st.integers(1, 3).map(lambda num: {"type": "string", "pattern": f"^[a-c]{{{num}}}[0-9]?$"}),
    st.sampled_from([{"type": "number", "minimum": 0, "maximum": 2}, {"const": {"a": [1]}}]),
)


def objects(values: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    properties = st.dictionaries(st.sampled_from("abcd"), values, max_size=3)
    return st.tuples(properties, st.integers(0, 3)).map(
        lambda parts: {
            "type": "object",
            "properties": parts[0],
            "required": list(parts[0])[: parts[1]],
            "additionalProperties": False,
        }
    )


SCHEMAS = st.recursive(
    SCALARS,
    lambda values: st.one_of(
        objects(values),
        st.tuples(values, st.integers(0, 2)).map(
            lambda parts: {"type": "array", "items": parts[0], "maxItems": parts[1]}
        ),
        st.lists(values, min_size=1, max_size=2).map(lambda either: {"anyOf": either}),
    ),
    max_leaves=5,
)


@settings(max_examples=25, deadline=None)
@given(wanted=st.lists(SCHEMAS, min_size=1, max_size=6), seed=st.integers(0, 2**32))
def test_every_finished_document_satisfies_its_schema(
    model_pair: Any, wanted: list[dict[str, Any]], seed: int
) -> None:
    loaded = with_text(model_pair("llama")[1])
    rows = [(str(i), job(schema(one), seed=seed + i)) for i, one in enumerate(wanted)]

    ends = run(make_engine(loaded, num_blocks=200), rows)

    for i, one in enumerate(wanted):
        end = ends[str(i)]
        assert end.error is None
        if end.finish_reason is FinishReason.STOP:
            jsonschema_rs.validate(one, json.loads(end.text))
        else:
            assert end.usage.completion_tokens == 48
