"""Lines of /v1/score: which fields they have, where tokens are cut, what is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gristmill.models import Model, find_model
from gristmill.requests import scores as scores_module
from gristmill.requests.prepare import Window
from gristmill.scoring import ScoreType, TextSize
from gristmill.settings import Settings
from gristmill.types import Job, JobKind

Read = Callable[..., list[Window]]


def score(custom_id: str, **body: Any) -> str:
    return json.dumps(
        {
            "custom_id": custom_id,
            "method": "POST",
            "url": "/v1/score",
            "body": {"model": "M", **body},
        }
    )


def pair(custom_id: str, context: Any, continuation: Any, **body: Any) -> str:
    body = {"context": context, "continuation": continuation, **body}
    return score(custom_id, type="loglikelihood", **body)


def rolled(custom_id: str, text: Any, **body: Any) -> str:
    return score(custom_id, type="rolling", text=text, **body)


CHAT: dict[str, Any] = {
    "type": "choices",
    "choices": ["a"],
    "messages": [{"role": "user", "content": "b"}],
}


def jobs_of(windows: list[Window]) -> dict[str, Job]:
    assert not [refused for window in windows for refused in window.refused]
    return {row.custom_id: job for w in windows for job in w.jobs for row in job.rows}


def refused(windows: list[Window]) -> dict[str, tuple[str | None, str]]:
    return {
        one.row.custom_id: (one.error.param, one.error.code) for w in windows for one in w.refused
    }


@pytest.fixture(scope="module")
def smollm2(smollm2_folder: Path) -> Model:
    return find_model("smollm2-135m", settings=Settings(), served_names=["M"])


@pytest.mark.real_model
def test_B59_white_space_at_the_end_of_a_context_moves_to_the_continuation(
    read: Read, smollm2: Model
) -> None:
    lines = [
        pair("a", "The answer is ", "Paris"),
        pair("b", "The answer is", " Paris"),
        pair("c", "Answer: ", "A"),
        pair("d", "Answer:", " A"),
        score("e", type="choices", context="The answer is ", choices=["Paris", "Rome"]),
    ]

    windows = read(lines, smollm2)

    jobs = jobs_of(windows)
    assert jobs["a"] == jobs["b"], "the two spellings are one Job"
    assert jobs["a"].prompt.token_ids == (504, 2988, 314, 7042)
    assert jobs["a"].prompt.scored_ids == (7042,)
    assert jobs["c"].prompt.scored_ids == jobs["d"].prompt.scored_ids == (330,)
    assert jobs["a"].scoring is not None and jobs["a"].scoring.sizes == (TextSize(5, 1),)
    assert [prompt.scored_ids for prompt in jobs["e"].prompts] == [(7042,), (7268,)]
    assert sum(len(window.jobs) for window in windows) == 3


@pytest.mark.real_model
def test_an_empty_context_is_the_begin_of_text_token(read: Read, smollm2: Model) -> None:
    lines = [pair("a", "", "Paris"), pair("b", "  ", "Paris"), pair("c", "", [1, 38634])]

    jobs = jobs_of(read(lines, smollm2))

    assert jobs["a"].prompt.token_ids == (1, 38634) and jobs["a"].prompt.scored_from == 1
    assert jobs["b"].prompt.token_ids[0] == 1
    assert len(jobs["b"].prompt.scored_ids) >= 2, "the spaces are scored with the word"
    assert jobs["c"].prompt == jobs["a"].prompt, "it is not there twice"


def test_B09_a_bos_that_the_tokenizer_adds_stands_there_once_and_is_not_scored(
    read: Read, make_model: Any
) -> None:
    model = make_model(add_bos=True)
    lines = [
        pair("a", "the quick", " brown"),
        pair("b", "", " brown"),
        pair("plain", "the quick", " brown", add_special_tokens=False),
        rolled("c", "the quick brown"),
        rolled("d", "the quick brown", add_special_tokens=False),
    ]

    jobs = jobs_of(read(lines, model))

    bos = jobs["a"].prompt.token_ids[0]
    counts = {name: list(job.prompt.token_ids).count(bos) for name, job in jobs.items()}
    assert counts == {"a": 1, "b": 1, "plain": 0, "c": 1, "d": 1}
    assert jobs["c"].prompt == jobs["d"].prompt and jobs["c"].prompt.scored_from == 1
    assert jobs["a"].prompt.scored_ids == jobs["b"].prompt.scored_ids
    assert not any(bos in prompt.scored_ids for job in jobs.values() for prompt in job.prompts)


def test_a_model_without_a_token_to_begin_with_needs_a_context(
    read: Read, make_model: Any, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(make_model().path, tmp_path / "model"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    model = find_model(str(folder), settings=Settings(), served_names=["M"])
    lines = [pair("a", "", "the"), rolled("b", "the quick"), pair("c", "the", " quick")]

    windows = read(lines, model)

    assert refused(windows) == {"a": ("context", "invalid_value"), "b": ("text", "invalid_value")}


@pytest.mark.parametrize("num_tokens", [1, 4, 8, 9, 10, 17, 23])
@pytest.mark.parametrize(("window", "stride"), [(8, 8), (8, 3), (8, 1), (2, 1), (64, None)])
def test_each_token_of_a_rolled_text_is_scored_once_behind_all_the_context_there_is_room_for(
    read: Read, make_model: Any, num_tokens: int, window: int, stride: int | None
) -> None:
    ids = [40 + i for i in range(num_tokens)]
    body = {"window": window} | ({"stride": stride} if stride else {})

    job = jobs_of(read([rolled("a", ids, **body)], make_model(add_bos=True)))["a"]

    scored = [token_id for prompt in job.prompts for token_id in prompt.scored_ids]
    assert scored == ids
    for i, prompt in enumerate(job.prompts):
        assert prompt.scored_from is not None and prompt.scored_from >= 1
        assert len(prompt.token_ids) <= window + 1
        if i:
            assert len(prompt.token_ids) == window + 1, "context fills the window"
            assert len(prompt.scored_ids) <= (stride or window)
    assert job.kind is JobKind.SCORE
    assert job.scoring is not None and job.scoring.type is ScoreType.ROLLING


def test_rows_that_score_the_same_share_a_job(read: Read, make_model: Any) -> None:
    lines = [pair("a", "the quick", " brown"), pair("b", "the quick", " brown")]
    lines += [pair("c", "the quick", " brown", top_logprobs=3)]

    windows = read(lines, make_model())

    assert [len(job.rows) for window in windows for job in window.jobs] in ([2, 1], [1, 2])


def test_B15_a_score_over_the_window_is_refused_with_both_numbers(
    read: Read, make_model: Any
) -> None:
    [window] = read([pair("a", [50] * 70, [60, 61])], make_model(max_model_len=64))

    error = window.refused[0].error
    assert error.code == "context_length_exceeded"
    assert "70" in error.message and "64" in error.message


def test_B15_B67_what_is_too_long_is_refused_by_name_or_cut_at_the_beginning_when_asked(
    read: Read, make_model: Any
) -> None:
    model = make_model(max_model_len=16)
    context, tail = list(range(40, 60)), [70, 71, 72]
    lines = [
        pair("fits", context[:14], tail),  # the last token is predicted, not read
        pair("long", context, tail),
        pair("cut", context, tail, truncate_prompt_tokens=-1),
        pair("shorter", context, tail, truncate_prompt_tokens=5),
        pair("hopeless", [1], list(range(40, 60)), truncate_prompt_tokens=-1),
        rolled("rolled", context),
    ]

    windows = read(lines, model)

    assert refused(windows) == {
        "long": ("continuation", "context_length_exceeded"),
        "hopeless": ("continuation", "context_length_exceeded"),
    }
    jobs = {row.custom_id: job for w in windows for job in w.jobs for row in job.rows}
    assert len(jobs["fits"].prompt.token_ids) == 17
    assert jobs["cut"].prompt.token_ids == (*context[-14:], *tail)
    assert jobs["shorter"].prompt.token_ids == (*context[-3:], *tail)
    assert all(jobs[name].prompt.scored_ids == tuple(tail) for name in ("fits", "cut", "shorter"))
    assert len(jobs["rolled"].prompts) == 2
    dropped = {name: [prompt.num_dropped for prompt in job.prompts] for name, job in jobs.items()}
    assert dropped == {"fits": [0], "cut": [6], "shorter": [17], "rolled": [0, 0]}


def chat_of(custom_id: str, content: str = "the fox", **body: Any) -> str:
    messages = [{"role": "user", "content": content}, *body.pop("then", [])]
    body = {"type": "choices", "choices": [" dog", "fox"], **body}
    return score(custom_id, messages=messages, **body)


def test_messages_are_rendered_and_the_assistants_answer_is_scored(
    read: Read, make_model: Any, chat: Callable[..., str], completion: Callable[..., str]
) -> None:
    said = {"role": "assistant", "content": "the lazy"}
    lines = [
        chat_of("a"),
        chat_of("b", then=[said], continue_final_message=True),
        score(
            "c",
            type="loglikelihood",
            continuation=" dog",
            messages=json.loads(chat_of("a"))["body"]["messages"],
        ),
        chat_of("sealed", "x <|im_end|> y"),
    ]

    windows = read(lines, make_model())

    jobs = jobs_of(windows)
    [turn] = jobs_of(read([chat("t", "the fox")], make_model())).values()
    [dog] = jobs_of(read([completion("d", " dog")], make_model())).values()
    [fox] = jobs_of(read([completion("f", "fox")], make_model())).values()
    assert [prompt.token_ids for prompt in jobs["a"].prompts] == [
        turn.prompt_ids + dog.prompt_ids,
        turn.prompt_ids + fox.prompt_ids,
    ]
    assert {prompt.scored_from for prompt in jobs["a"].prompts} == {len(turn.prompt_ids)}
    assert jobs["c"].prompt == jobs["a"].prompts[0]
    [continued] = jobs_of(
        read(
            [
                chat(
                    "t",
                    messages=[{"role": "user", "content": "the fox"}, said],
                    continue_final_message=True,
                )
            ],
            make_model(),
        )
    ).values()
    assert jobs["b"].prompts[0].token_ids == continued.prompt_ids + dog.prompt_ids
    end = turn_end_id(make_model())
    assert jobs["sealed"].prompts[0].token_ids.count(end) == turn.prompt_ids.count(end)
    assert {window.template_hash for window in windows} == {make_model().template_hash}


def turn_end_id(model: Model) -> int:
    from tokenizers import Tokenizer

    found = Tokenizer.from_file(str(model.path / "tokenizer.json")).token_to_id("<|im_end|>")
    assert found is not None
    return int(found)


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "type", "missing_required_parameter"),
        ({"type": "other"}, "type", "invalid_value"),
        ({"type": "loglikelihood", "context": "a"}, "continuation", "missing_required_parameter"),
        ({"type": "choices", "context": "a", "choices": []}, "choices", "invalid_value"),
        ({"type": "choices", "context": "a", "choices": "b"}, "choices", "invalid_value"),
        ({"type": "choices", "context": "a", "choices": ["b", ""]}, "choices[1]", "empty_prompt"),
        ({"type": "choices", "context": [4], "choices": [[5], "b"]}, "choices[1]", "invalid_value"),
        (
            {"type": "choices", "context": [4], "choices": [[5], [-1]]},
            "choices[1]",
            "invalid_value",
        ),
        ({"type": "choices", "choices": ["a"]}, "context", "missing_required_parameter"),
        ({"type": "choices", "choices": ["a"], "messages": []}, "messages", "invalid_value"),
        ({**CHAT, "context": "b"}, "messages", "invalid_value"),
        (
            {**CHAT, "messages": [{"role": "user"}]},
            "messages[0].content",
            "missing_required_parameter",
        ),
        ({**CHAT, "add_special_tokens": True}, "add_special_tokens", "invalid_value"),
        ({**CHAT, "continue_final_message": True}, "continue_final_message", "invalid_value"),
        (
            {**CHAT, "chat_template_kwargs": {"colour": 1}},
            "chat_template_kwargs",
            "unsupported_parameter",
        ),
        (
            {"type": "choices", "context": "a", "choices": ["a"], "chat_template_kwargs": {}},
            "chat_template_kwargs",
            "invalid_value",
        ),
        ({"type": "rolling", "text": "a", "messages": []}, "messages", "invalid_value"),
        ({"type": "rolling", "text": ""}, "text", "empty_prompt"),
        ({"type": "rolling", "text": "a", "choices": ["b"]}, "choices", "invalid_value"),
        ({"type": "rolling", "text": "a", "window": 1}, "window", "invalid_value"),
        ({"type": "rolling", "text": "a", "window": 10**6}, "window", "invalid_value"),
        ({"type": "rolling", "text": "a", "window": 8, "stride": 9}, "stride", "invalid_value"),
        ({"type": "rolling", "text": "a", "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"type": "rolling", "text": "a", "temperature": 0}, "temperature", "unknown_parameter"),
        ({"type": "rolling", "text": 5}, "text", "invalid_value"),
    ],
)
def test_a_wrong_body_is_refused_by_the_name_of_its_parameter(
    read: Read, make_model: Any, body: dict[str, Any], param: str, code: str
) -> None:
    windows = read([score("bad", **body)], make_model(add_bos=True))

    assert refused(windows) == {"bad": (param, code)}


def test_a_small_stride_cannot_fill_the_memory(
    read: Read, make_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores_module, "MAX_WINDOW_TOKENS", 100)
    ids = list(range(40, 80))

    windows = read([rolled("a", ids, window=8, stride=1)], make_model(add_bos=True))

    assert refused(windows) == {"a": ("stride", "invalid_value")}
