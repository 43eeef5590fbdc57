"""Bodies: what each parameter may be, and that nothing is ignored."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gristmill.errors import RowRefused
from gristmill.requests.bodies import CompletionBody, read_body
from gristmill.types import Endpoint, SamplingParams

VOCAB_SIZE = 49152
USER = [{"role": "user", "content": "hi"}]


def chat_body(**fields: Any) -> Any:
    body = {"model": "M", "messages": USER, **fields}
    return read_body(body, endpoint=Endpoint.CHAT, vocab_size=VOCAB_SIZE)


def completion_body(**fields: Any) -> Any:
    body = {"model": "M", "prompt": "hi", **fields}
    return read_body(body, endpoint=Endpoint.COMPLETIONS, vocab_size=VOCAB_SIZE)


def params(**fields: Any) -> SamplingParams:
    found: SamplingParams = completion_body(**fields).sampling(max_tokens=5, derived_seed=77)
    return found


def refusal(read: Any, **fields: Any) -> RowRefused:
    with pytest.raises(RowRefused) as caught:
        read(**fields)
    assert caught.value.status_code == 400
    return caught.value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", 18446744073709551616),
        ("seed", 2**63),
        ("seed", -9223372036854775809),
        ("seed", 1.0),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", -0.1),
        ("temperature", 2.01),
        ("temperature", 10**400),
        ("top_p", 0),
        ("top_p", math.inf),
        ("top_p", math.nan),
        ("top_p", 1.01),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("min_p", math.nan),
        ("top_k", -2),
        ("top_k", 2.0),
        ("logit_bias", {"49152": 5}),
        ("logit_bias", {"-1": 5}),
        ("logit_bias", {"abc": 5}),
        ("logit_bias", {"1_0": 5}),
        ("logit_bias", {" 1": 5}),
        ("logit_bias", {"01": 5}),
        ("logit_bias", {"٣": 5}),
        ("logit_bias", {"1" * 5000: 5}),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"5": math.nan}),
        ("logit_bias", {"5": True}),
        ("logit_bias", {"5": "1"}),
        ("logit_bias", [5]),
        ("n", 0),
        ("max_tokens", 99999999999999999999),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("ignore_eos", 1),
        ("stop", 5),
        ("stop", [5]),
        ("user", 5),
        ("metadata", {"a": 1}),
        ("metadata", "a"),
    ],
)
def test_B08_a_value_out_of_range_is_refused_by_the_name_of_its_parameter(
    field: str, value: object
) -> None:
    error = refusal(completion_body, **{field: value})

    assert error.param == field
    assert f"`{field}`" in str(error)


@pytest.mark.parametrize("field", ["max_tokens", "temperature", "top_p", "top_k", "min_p", "seed"])
@pytest.mark.parametrize("value", ["1", True, [], {}])
def test_B08_strings_and_booleans_are_no_numbers(field: str, value: object) -> None:
    error = refusal(completion_body, **{field: value})

    assert (error.param, error.code) == (field, "invalid_type")


def test_B08_limits_are_inclusive() -> None:
    assert params(seed=2**63 - 1, temperature=2).seed == 2**63 - 1
    assert params(seed=-(2**63)).seed == 2**63
    assert params(seed=-1).seed == 2**64 - 1
    assert params(logit_bias={"49151": -100, "0": 100}).logit_bias == ((0, 100.0), (49151, -100.0))
    assert params(top_p=1, min_p=1).min_p == 1


def test_B16_defaults_are_those_of_the_api_and_null_means_absent() -> None:
    nothing = dict.fromkeys(
        ["temperature", "top_p", "top_k", "min_p", "seed", "stop", "logit_bias", "ignore_eos"]
    )

    expected = SamplingParams(max_tokens=5, seed=77)

    assert params() == params(**nothing) == params(temperature=1, top_p=1, top_k=-1) == expected


def test_B16_an_explicit_temperature_of_zero_is_greedy_and_needs_no_seed() -> None:
    assert params(temperature=0, seed=5) == SamplingParams(max_tokens=5, temperature=0, seed=0)
    assert params(temperature=0.0).greedy
    assert not params(temperature=1e-6).greedy


@pytest.mark.parametrize("stop", ["", ["", ".x"], [".x", ""]])
def test_B18_an_empty_stop_string_is_refused(stop: object) -> None:
    error = refusal(completion_body, stop=stop)

    assert (error.param, error.code) == ("stop", "invalid_value")


def test_B18_stop_strings() -> None:
    assert params(stop=[]).stop == params(stop=None).stop == ()
    assert params(stop="\n").stop == ("\n",)
    assert params(stop=["a", "b", "c", "d"]).stop == ("a", "b", "c", "d")
    assert refusal(completion_body, stop=list("abcde")).param == "stop"


def test_B51_both_names_of_the_output_limit_work_on_chat_and_the_newer_wins() -> None:
    assert chat_body(max_tokens=8).output_limit == 8
    assert chat_body(max_completion_tokens=8).output_limit == 8
    assert chat_body(max_tokens=8, max_completion_tokens=4).output_limit == 4
    assert chat_body(max_tokens=4, max_completion_tokens=8).output_limit == 8
    assert chat_body(max_tokens=None, max_completion_tokens=None).output_limit is None


def test_B51_on_completions_the_chat_name_is_refused_with_the_right_one() -> None:
    error = refusal(completion_body, max_completion_tokens=8)

    assert error.param == "max_completion_tokens"
    assert "`max_tokens`" in str(error)
    assert completion_body().output_limit == 16


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stream", True),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("n", 2),
        ("logprobs", True),
        ("top_logprobs", 5),
        ("frequency_penalty", 0.5),
        ("presence_penalty", -2),
        ("repetition_penalty", 1.1),
        ("response_format", {"type": "json_object"}),
        ("functions", [{}]),
        ("reasoning_effort", "low"),
        ("verbosity", "high"),
        ("service_tier", "flex"),
        ("store", True),
        ("prediction", {}),
        ("modalities", ["audio"]),
        ("min_tokens", 3),
        ("stop_token_ids", [2]),
        ("include_stop_str_in_output", True),
        ("add_generation_prompt", False),
        ("chat_template", "x"),
        ("chat_template_kwargs", {"a": 1}),
        ("guided_json", {}),
        ("guided_choice", ["a"]),
        ("n", True),
        ("stream", 0),
    ],
)
def test_B06_what_is_not_supported_yet_is_refused_by_name(field: str, value: object) -> None:
    error = refusal(chat_body, **{field: value})

    assert (error.param, error.code) == (field, "unsupported_parameter")
    assert field in str(error) and "not supported yet" in str(error)


@pytest.mark.parametrize("field", ["echo", "logprobs", "suffix", "best_of"])
def test_B06_what_completions_do_not_support_yet_is_refused_by_name(field: str) -> None:
    error = refusal(completion_body, **{field: 5})

    assert (error.param, error.code) == (field, "unsupported_parameter")


def test_B06_an_unknown_parameter_is_refused_by_name() -> None:
    for value in (1, None):
        error = refusal(chat_body, no_such_param=value)
        assert (error.param, error.code) == ("no_such_param", "unknown_parameter")
    assert refusal(chat_body, prompt="hi").param == "prompt"
    assert refusal(completion_body, messages=USER).param == "messages"


def test_values_that_mean_the_same_as_absence_are_accepted() -> None:
    neutral = {
        "n": 1,
        "stream": False,
        "logprobs": False,
        "top_logprobs": None,
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "response_format": {"type": "text"},
        "tools": [],
        "tool_choice": None,
        "store": False,
        "service_tier": "auto",
        "user": "me",
        "metadata": {"a": "b"},
        "guided_json": None,
        "continue_final_message": False,
        "add_generation_prompt": True,
    }

    assert chat_body(**neutral).messages == USER
    assert completion_body(best_of=1, echo=False, logprobs=None, suffix=None).prompt == "hi"


def test_messages_are_texts_with_a_role() -> None:
    roles = ["system", "developer", "user", "assistant"]
    messages = [{"role": role, "content": ""} for role in roles]
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]

    assert chat_body(messages=messages).messages == messages
    joined = chat_body(messages=[{"role": "user", "content": parts}]).messages
    assert joined == [{"role": "user", "content": "a b"}]
    dumped = {**USER[0], "name": None, "refusal": None, "tool_calls": None}
    assert chat_body(messages=[dumped]).messages == USER


@pytest.mark.parametrize(
    ("messages", "param", "code"),
    [
        ([], "messages", "invalid_value"),
        (None, "messages", "invalid_type"),
        ("hi", "messages", "invalid_type"),
        (["hi"], "messages[0]", "invalid_type"),
        ([*USER, {"role": "user"}], "messages[1].content", "missing_required_parameter"),
        ([{"content": "hi"}], "messages[0].role", "missing_required_parameter"),
        ([{"role": "user", "content": None}], "messages[0].content", "missing_required_parameter"),
        ([{"role": "user", "content": 5}], "messages[0].content", "invalid_type"),
        ([{"role": "bob", "content": "hi"}], "messages[0].role", "invalid_value"),
        ([{"role": "tool", "content": "hi"}], "messages[0].role", "unsupported_parameter"),
        ([{**USER[0], "name": "x"}], "messages[0].name", "unsupported_parameter"),
        ([{**USER[0], "tool_calls": []}], "messages[0].tool_calls", "unsupported_parameter"),
    ],
)
def test_a_bad_message_is_named_by_its_place(messages: object, param: str, code: str) -> None:
    error = refusal(chat_body, messages=messages)

    assert (error.param, error.code) == (param, code)


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ({"type": "image_url", "image_url": {"url": "x"}}, "unsupported_parameter"),
        ({"type": "text"}, "invalid_value"),
        ({"type": "text", "text": 5}, "invalid_value"),
        ({"type": "text", "text": "a", "extra": 1}, "invalid_value"),
        ({"text": "a"}, "invalid_value"),
        ("text", "invalid_value"),
    ],
)
def test_only_text_parts_are_taken(part: object, code: str) -> None:
    error = refusal(chat_body, messages=[*USER, {"role": "user", "content": [part]}])

    assert (error.param, error.code) == ("messages[1].content", code)


def test_a_prompt_is_one_text_or_one_list_of_token_ids() -> None:
    assert completion_body(prompt=["hi"]).prompt == "hi"
    assert completion_body(prompt=[1, 2]).prompt == (1, 2)
    assert completion_body(prompt=[[1, 2]]).prompt == (1, 2)
    assert isinstance(completion_body(prompt=[]), CompletionBody)
    for several in (["a", ""], [[1], [2]], ["a", 1]):
        error = refusal(completion_body, prompt=several)
        assert (error.param, error.code) == ("prompt", "unsupported_parameter")
        assert "several prompts" in str(error)


@pytest.mark.parametrize(
    "prompt", [[5, 999999999, -1], [-1], [VOCAB_SIZE], [True], [1.0], [None], 5, None, {}, [[True]]]
)
def test_B71_a_prompt_of_anything_but_token_ids_is_refused(prompt: object) -> None:
    assert refusal(completion_body, prompt=prompt).param == "prompt"


def test_a_long_value_is_cut_in_the_message() -> None:
    assert len(str(refusal(completion_body, temperature="x" * 10_000))) < 200
