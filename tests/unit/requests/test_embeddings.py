"""Lines of /v1/embeddings: what is read, what is refused, what a Job is made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from gristmill.embedding import EmbeddingParams, Pooling
from gristmill.models import Model, find_model
from gristmill.requests.embeddings import MAX_INPUTS
from gristmill.requests.prepare import Window
from gristmill.settings import Settings
from gristmill.types import Job, JobKind, RowError

URL = "/v1/embeddings"
CLS, SEP = 1, 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """An encoder of 20 tokens; a text's words are letters, between [CLS] and [SEP]."""
    folder = tmp_path_factory.mktemp("encoder")
    words = {w: i for i, w in enumerate(["[UNK]", "[CLS]", "[SEP]", *"abcdefgh"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    files: dict[str, Any] = {
        "config.json": {
            "architectures": ["BertModel"],
            "vocab_size": len(words),
            "hidden_size": 8,
            "max_position_embeddings": 512,
        },
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
        "modules.json": [{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": "p"}],
        "p/config.json": {"pooling_mode_cls_token": True},
        "sentence_bert_config.json": {"max_seq_length": 20, "do_lower_case": True},
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    (folder / "model.safetensors").write_bytes(b"weights")
    return find_model(str(folder), settings=Settings(), served_names=["M"])


def line(custom_id: str, value: Any, **body: Any) -> str:
    body = {"model": "M", "input": value, **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": URL, "body": body})


def jobs_of(windows: list[Window]) -> dict[str, Job]:
    return {row.custom_id: job for w in windows for job in w.jobs for row in job.rows}


@pytest.fixture
def one(read: Any, model: Model) -> Any:
    """(Job or None, RowError or None) of a single row."""

    def read_one(value: Any, **body: Any) -> tuple[Job | None, RowError | None]:
        windows = read([line("r", value, **body)], model)
        job = jobs_of(windows).get("r")
        errors = [refusal.error for w in windows for refusal in w.refused]
        return job, errors[0] if errors else None

    return read_one


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a b", [(CLS, 3, 4, SEP)]),
        ("A B", [(CLS, 3, 4, SEP)]),  # the model's own files say so
        (["a", "b b"], [(CLS, 3, SEP), (CLS, 4, 4, SEP)]),
        ([3, 4], [(3, 4)]),
        ([[3, 4], [5]], [(3, 4), (5,)]),
        (["a", [5]], [(CLS, 3, SEP), (5,)]),
        (["a", "a"], [(CLS, 3, SEP)] * 2),
    ],
)
def test_texts_and_token_ids_become_prompts(one: Any, value: Any, expected: Any) -> None:
    job, error = one(value)

    assert error is None
    assert [prompt.token_ids for prompt in job.prompts] == expected
    assert (job.kind, job.params.max_tokens, job.params.greedy) == (JobKind.EMBED, 0, True)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, EmbeddingParams(Pooling.CLS, normalize=False)),
        ({"encoding_format": "float"}, EmbeddingParams(Pooling.CLS, normalize=False)),
        (
            {"encoding_format": "base64", "dimensions": 8, "user": "u", "metadata": {"a": "b"}},
            EmbeddingParams(Pooling.CLS, normalize=False, dimensions=8, base64=True),
        ),
        ({"pooling": "mean"}, EmbeddingParams(Pooling.MEAN, normalize=False)),
        ({"pooling": "last", "normalize": True}, EmbeddingParams(Pooling.LAST, normalize=True)),
        ({"pooling": None, "dimensions": None}, EmbeddingParams(Pooling.CLS, normalize=False)),
    ],
)
def test_the_models_own_way_counts_unless_the_row_says_otherwise(
    one: Any, body: dict[str, Any], expected: EmbeddingParams
) -> None:
    job, _ = one("a", **body)

    assert job.embedding == expected


@pytest.mark.parametrize(
    ("value", "param", "words"),
    [
        ("", "input", "empty"),
        (["a", ""], "input", "at 1"),
        ([], "input", "entries"),
        ([[]], "input", "at 0"),
        (3, "input", "must be"),
        ([3, "a"], "input", "neither"),
        (["a", 3.5], "input", "at 1"),
        ([[3], [True]], "input", "at 1"),
        ({"a": 1}, "input", "must be"),
        (None, "input", "must be"),
        (["a"] * (MAX_INPUTS + 1), "input", "2048"),
        ([3, 11], "input", "11"),
        ([[-1]], "input", "-1"),
    ],
)
def test_an_input_that_makes_no_sense_is_refused(
    one: Any, value: Any, param: str, words: str
) -> None:
    job, error = one(value)

    assert job is None
    assert error.param == param and words in error.message
    assert error.status_code == 400


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"dimensions": 9}, "dimensions", "invalid_value"),
        ({"dimensions": 0}, "dimensions", "invalid_value"),
        ({"dimensions": "8"}, "dimensions", "invalid_type"),
        ({"encoding_format": "hex"}, "encoding_format", "invalid_value"),
        ({"pooling": "max"}, "pooling", "invalid_value"),
        ({"normalize": "yes"}, "normalize", "invalid_type"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "invalid_value"),
        ({"truncate_prompt_tokens": 1}, "truncate_prompt_tokens", "invalid_value"),
        ({"truncate_prompt_tokens": "3"}, "truncate_prompt_tokens", "invalid_value"),
        ({"user": 3}, "user", "invalid_type"),
        ({"temperature": 1}, "temperature", "unknown_parameter"),
        ({"priority": 3}, "priority", "unsupported_parameter"),
    ],
)
def test_a_parameter_that_cannot_be_honoured_is_refused_by_name(
    one: Any, body: dict[str, Any], param: str, code: str
) -> None:
    job, error = one("a b c d e", **body)

    assert job is None
    assert (error.param, error.code) == (param, code)


def test_a_missing_input_is_named(read: Any, model: Model) -> None:
    request = json.loads(line("r", "a"))
    del request["body"]["input"]

    [window] = read([json.dumps(request)], model)

    assert window.refused[0].error.code == "missing_required_parameter"


def test_an_input_may_fill_the_window_and_no_more(one: Any) -> None:
    fits, _ = one([3] * 20)
    _, error = one([[3], [3] * 21])

    assert fits is not None
    assert (error.param, error.code) == ("input[1]", "context_length_exceeded")
    assert "21 tokens" in error.message and "20" in error.message
    assert "truncate_prompt_tokens" in error.message


@pytest.mark.parametrize(
    ("value", "limit", "expected", "num_dropped"),
    [
        ("a b c d", 4, (CLS, 3, 4, SEP), 2),
        ("a b c d", 6, (CLS, 3, 4, 5, 6, SEP), 0),
        ("a b c d", 2, (CLS, SEP), 4),
        ([3, 4, 5], 2, (3, 4), 1),
        ("a " * 40, -1, (CLS, *[3] * 18, SEP), 22),
    ],
)
def test_B15_truncation_leaves_out_the_end_and_keeps_the_closing_token(
    one: Any, value: Any, limit: int, expected: tuple[int, ...], num_dropped: int
) -> None:
    job, _ = one(value, truncate_prompt_tokens=limit)

    assert job.prompt_ids == expected
    assert job.prompt.num_dropped == num_dropped


def test_rows_share_a_job_when_they_ask_for_the_very_same(read: Any, model: Model) -> None:
    lines = [line("a", ["a", "b"]), line("b", ["a", "b"]), line("c", ["b", "a"])]
    lines += [line("d", ["a", "b"], encoding_format="base64"), line("e", "A B")]

    windows = read(lines, model)

    rows = [[row.custom_id for row in job.rows] for w in windows for job in w.jobs]
    assert sorted(rows) == [["a", "b"], ["c"], ["d"], ["e"]]
    assert sum(window.prompt_tokens for window in windows) == 4 * 6 + 4
    assert {window.template_hash for window in windows} == {""}


@pytest.mark.parametrize("url", ["/v1/chat/completions", "/v1/completions"])
def test_an_encoder_cannot_be_asked_to_generate(errors_of: Any, model: Model, url: str) -> None:
    request = {**json.loads(line("r", "a")), "url": url}

    [error] = errors_of([json.dumps(request)] * 1, model)

    assert (error.line, error.param) == (1, "url")
    assert "only makes vectors" in error.message and URL in error.message


def test_a_model_whose_vectors_are_not_known_makes_none(errors_of: Any, make_model: Any) -> None:
    # Its config.json has no hidden_size.
    [error] = errors_of([line("r", "a")], make_model())

    assert (error.line, error.param) == (1, "url")
    assert "vectors" in error.message


def test_a_folder_of_a_generator_serves_embeddings_by_the_last_token(
    read: Any, make_model: Any
) -> None:
    generator = make_model(add_bos=True)
    config_path = Path(generator.path) / "config.json"
    before = config_path.read_text()
    try:
        config_path.write_text(json.dumps({**json.loads(before), "hidden_size": 16}))
        model = find_model(str(generator.path), settings=Settings(), served_names=["M"])
        [window] = read([line("r", "hi")], model)
    finally:
        config_path.write_text(before)

    assert window.jobs[0].embedding == EmbeddingParams(Pooling.LAST, normalize=True)


def test_a_file_has_a_limit_of_inputs_also_when_it_is_read_in_parts(
    read: Any, errors_of: Any, model: Model
) -> None:
    lines = [line("a", ["a", "b"]), line("b", "a"), line("c", [3, 4, 5]), line("d", [[3], [4]])]
    within, beyond = (Settings(max_embedding_inputs=n) for n in (6, 5))

    [window] = read(lines, model, settings=within)
    [error] = errors_of(lines, model, settings=beyond)

    assert window.num_rows == 4
    assert error.code == "too_many_tasks" and "6 inputs" in error.message
    assert "GRISTMILL_MAX_EMBEDDING_INPUTS" in error.message
    [first] = read("".join(f"{one}\n" for one in lines[:2]).encode(), model)
    assert [w.num_rows for w in read(lines, model, settings=within, start=first.cursor)] == [2]
    [error] = errors_of(lines, model, settings=beyond, start=first.cursor)
    assert "6 inputs" in error.message
