"""What a row becomes: by a template, by its columns, or as the request that it is."""

from __future__ import annotations

import json

import pytest

from gristmill.client.rows import Recipe, ready_file
from gristmill.errors import DataInvalid, UsageError


def requests(source, **recipe):
    given = dict.fromkeys(("endpoint", "template", "system", "id_column"))
    given |= {"model": "M", "params": {}, **recipe}
    return list(Recipe.of(**given).requests(source))


def body_of(row, **recipe):
    (made,) = requests([row], **recipe)
    return made["url"], made["body"]


def chat(*contents):
    roles = ("system", "user") if len(contents) == 2 else ("user",)
    return [{"role": role, "content": text} for role, text in zip(roles, contents, strict=True)]


def test_a_template_makes_a_chat_and_parameters_go_along():
    url, body = body_of(
        {"text": "good", "note": "x"},
        template="Review: {text}",
        system="Be {note}",
        params={"temperature": 0},
    )

    assert url == "/v1/chat/completions"
    assert body == {"model": "M", "temperature": 0, "messages": chat("Be x", "Review: good")}


def test_the_endpoint_says_what_a_template_makes():
    row = {"text": "good"}

    assert body_of(row, template="{text}!", endpoint="/v1/completions")[1]["prompt"] == "good!"
    assert body_of(row, template="{text}!", endpoint="/embeddings") == (
        "/v1/embeddings",
        {"model": "M", "input": "good!"},
    )


@pytest.mark.parametrize(
    ("row", "url", "asked"),
    [
        ("hello", "/v1/chat/completions", {"messages": chat("hello")}),
        ({"messages": chat("a", "b")}, "/v1/chat/completions", {"messages": chat("a", "b")}),
        ({"prompt": "x", "label": 3}, "/v1/completions", {"prompt": "x"}),
        ({"input": ["x", "y"]}, "/v1/embeddings", {"input": ["x", "y"]}),
    ],
)
def test_without_a_template_the_columns_say_it(row, url, asked):
    assert body_of(row) == (url, {"model": "M", **asked})


def test_a_prompt_becomes_a_chat_where_that_is_the_endpoint():
    url, body = body_of({"prompt": "x"}, endpoint="/v1/chat/completions", system="S")

    assert (url, body["messages"]) == ("/v1/chat/completions", chat("S", "x"))


@pytest.mark.parametrize(
    ("endpoint", "asked"),
    [
        ("/v1/chat/completions", {"messages": chat("m")}),
        ("/v1/completions", {"prompt": "p"}),
        ("/v1/embeddings", {"input": "i"}),
        (None, {"messages": chat("m")}),
    ],
)
def test_the_endpoint_takes_its_own_column_where_there_are_several(endpoint, asked):
    row = {"messages": chat("m"), "prompt": "p", "input": "i"}

    url, body = body_of(row, endpoint=endpoint)

    assert url == (endpoint or "/v1/chat/completions")
    assert body == {"model": "M", **asked}


def test_scores_take_their_columns_and_no_others():
    row = {"type": "choices", "context": "c", "choices": ["a", "b"], "label": "a", "text": None}

    assert body_of(row, endpoint="/v1/score") == (
        "/v1/score",
        {"model": "M", "type": "choices", "context": "c", "choices": ["a", "b"]},
    )


def test_whole_requests_stay_what_they_are_and_get_what_they_lack():
    row = {
        "custom_id": "q",
        "method": "POST",
        "url": "/v1/completions",
        "body": {"prompt": "x", "max_tokens": 3},
    }

    (made,) = requests([row], model="M", params={"max_tokens": 9, "top_k": 2})
    (bare,) = requests([{**row, "body": {"model": "N"}}], model=None)

    assert made["body"] == {"model": "M", "max_tokens": 3, "top_k": 2, "prompt": "x"}
    assert (made["custom_id"], bare["body"]) == ("q", {"model": "N"})


def test_rows_of_the_caller_stay_as_they_are_and_serve_another_model():
    rows = [{"url": "/v1/completions", "body": {"prompt": "x"}}]

    made = [requests(rows, model=name, params={"seed": seed})[0] for seed, name in enumerate("MN")]

    assert [one["body"] for one in made] == [
        {"model": "M", "seed": 0, "prompt": "x"},
        {"model": "N", "seed": 1, "prompt": "x"},
    ]
    assert rows == [{"url": "/v1/completions", "body": {"prompt": "x"}}]


def test_ids_come_from_a_column_or_from_the_place():
    rows = [{"prompt": "a", "key": 7}, {"prompt": "b", "key": 8, "custom_id": "own"}]

    assert [one["custom_id"] for one in requests(rows)] == ["row-1", "own"]
    assert [one["custom_id"] for one in requests(rows, id_column="key")] == ["7", "8"]


@pytest.mark.parametrize(
    ("rows", "recipe", "words"),
    [
        ([{"a": 1, "b": 2}], {}, "Row 1 has the columns 'a', 'b', and none of messages"),
        ([{"prompt": "x"}, {"x": 1}], {}, "Row 2 has the columns 'x'"),
        ([{"text": None}], {"template": "{text}"}, "Row 1: the column 'text' is empty"),
        ([{"t": 1}], {"template": "{text}"}, "'text', which is not there"),
        ([{"prompt": "x", "k": 1}, {"prompt": "y", "k": ""}], {"id_column": "k"}, "Row 2"),
        ([{"url": "/v1/completions", "body": 3}], {}, "its body is no object"),
        ([3], {}, "Row 1 is a int"),
    ],
)
def test_a_row_that_is_wrong_is_named(rows, recipe, words):
    with pytest.raises(DataInvalid, match=words):
        requests(rows, **recipe)


@pytest.mark.parametrize(
    ("source", "recipe", "words"),
    [
        ([{"prompt": "x"}], {"model": None}, "which model"),
        ([{"prompt": "x"}], {"endpoint": "/v1/images"}, "endpoint is '/v1/images'"),
        ([], {"endpoint": "/v1/score", "template": "x"}, "wants a context"),
        ([], {"endpoint": "/v1/completions", "system": "x"}, "belongs to a chat"),
        ([{"url": "/v1/completions", "body": {}}], {"template": "x"}, "has no place"),
        ({"a": 1}, {}, "A dict is one row"),
        (3, {}, "is no data set"),
        ([], {"template": "{text"}, "never closed"),
    ],
)
def test_a_call_that_is_wrong_says_the_way_out(source, recipe, words):
    with pytest.raises(UsageError, match=words):
        requests(source, **recipe)


def test_frames_and_data_sets_are_rows(tmp_path):
    class Dataset:
        """As datasets.Dataset: iterating gives dicts."""

        def __iter__(self):
            return iter([{"prompt": "x"}])

    path = tmp_path / "in.csv"
    path.write_text("prompt\nx\n")

    for source in (Dataset(), path, str(path), iter([{"prompt": "x"}])):
        assert [one["body"]["prompt"] for one in requests(source)] == ["x"]


def test_a_file_of_requests_goes_up_as_it_is(tmp_path):
    path = tmp_path / "in.jsonl"
    line = {"custom_id": "q", "method": "POST", "url": "/v1/score", "body": {"model": "M"}}
    path.write_text(f"{json.dumps(line)}\n" * 3)
    caps = {"max_rows": 3, "max_bytes": 10_000}

    def recipe(**given):
        made = dict.fromkeys(("model", "endpoint", "template", "system", "id_column"))
        return Recipe.of(**made | {"params": {}} | given)

    part = ready_file(path, recipe(), **caps)
    assert part is not None and (part.path, part.endpoint, part.num_rows) == (path, "/v1/score", 3)
    assert ready_file(str(path), recipe(model="M"), **caps) is not None
    for other in (
        ready_file(path, recipe(model="N"), **caps),
        ready_file(path, recipe(params={"top_k": 1}), **caps),
        ready_file(path, recipe(), max_rows=2, max_bytes=10_000),
        ready_file(path, recipe(), max_rows=3, max_bytes=10),
        ready_file([1], recipe(), **caps),
    ):
        assert other is None
