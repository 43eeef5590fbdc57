"""Bodies: what each parameter may be, and that nothing is ignored."""

from __future__ import annotations

import math

import pytest
from body import USER, VOCAB_SIZE, chat_body, completion_body, params, refusal

from gristmill.types import SamplingParams


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
        ("n", 129),
        ("n", True),
        ("best_of", -1),
        ("best_of", 2),
        ("best_of", 0),
        ("max_tokens", 99999999999999999999),
        ("max_tokens", -1),
        ("ignore_eos", 1),
        ("frequency_penalty", 2.1),
        ("presence_penalty", -2.1),
        ("frequency_penalty", math.nan),
        ("repetition_penalty", 0),
        ("repetition_penalty", 101),
        ("repetition_penalty", math.inf),
        ("min_tokens", -1),
        ("min_tokens", 17),  # more than the 16 that a completion has by default
        ("stop_token_ids", 5),
        ("stop_token_ids", [5, "6"]),
        ("stop_token_ids", [True]),
        ("stop_token_ids", [VOCAB_SIZE]),
        ("stop_token_ids", [-1]),
        ("include_stop_str_in_output", 1),
        ("logprobs", 21),
        ("logprobs", -1),
        ("logprobs", True),
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


NUMBERS = [
    *("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "min_tokens"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty"),
]


@pytest.mark.parametrize("field", NUMBERS)
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
        [
            *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "logit_bias"),
            *("frequency_penalty", "presence_penalty", "repetition_penalty", "min_tokens"),
            *("ignore_eos", "stop_token_ids", "include_stop_str_in_output"),
        ]
    )

    expected = SamplingParams(max_tokens=5, seed=77)

    assert params() == params(**nothing) == params(temperature=1, top_p=1, top_k=-1) == expected


def test_B16_an_explicit_temperature_of_zero_is_greedy_and_needs_no_seed() -> None:
    assert params(temperature=0, seed=5) == SamplingParams(max_tokens=5, temperature=0, seed=0)
    assert params(temperature=0.0).greedy
    assert not params(temperature=1e-6).greedy


def test_penalties_and_ends_arrive() -> None:
    found = params(
        frequency_penalty=-2,
        presence_penalty=0.5,
        repetition_penalty=1.1,
        min_tokens=3,
        stop_token_ids=[9, 2, 9],
        include_stop_str_in_output=True,
    )

    assert (found.frequency_penalty, found.presence_penalty) == (-2, 0.5)
    assert (found.repetition_penalty, found.min_tokens) == (1.1, 3)
    assert (found.stop_token_ids, found.include_stop_str_in_output) == ((2, 9), True)
    assert found.has_penalties and not params(frequency_penalty=-0.0).has_penalties


def test_a_zero_has_no_sign_so_that_no_receipt_shows_that_of_another_row() -> None:
    """Parameters that are equal are made and written once for many rows."""
    fields = ("temperature", "min_p", "frequency_penalty", "presence_penalty")
    with_sign = params(**dict.fromkeys(fields, -0.0), logit_bias={"5": -0.0, "3": 1})
    without = params(**dict.fromkeys(fields, 0.0), logit_bias={"5": 0.0, "3": 1})

    assert repr(with_sign) == repr(without)


def test_n_answers_and_best_of_that_is_no_other_number() -> None:
    assert params().n == params(n=None).n == params(best_of=1).n == 1
    assert params(n=128).n == 128 and params(n=3, best_of=3).n == 3
    assert chat_body(n=5).n == 5
    assert refusal(completion_body, n=2, best_of=3).code == "unsupported_parameter"
    assert refusal(completion_body, n=2, best_of=1).param == "best_of"


def test_logprobs_are_asked_for_in_the_way_of_each_endpoint() -> None:
    assert (
        chat_body(logprobs=True).num_logprobs
        == chat_body(logprobs=True, top_logprobs=0).num_logprobs
        == 0
    )
    assert chat_body(logprobs=True, top_logprobs=20).num_logprobs == 20
    assert chat_body(logprobs=False, top_logprobs=0).num_logprobs is None
    assert completion_body(logprobs=0).num_logprobs == params(logprobs=0).logprobs == 0
    assert completion_body(logprobs=20).num_logprobs == 20
    assert completion_body(logprobs=None).num_logprobs is params().logprobs is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 2, "logprobs": False}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": True, "logprobs": True}, "top_logprobs"),
        ({"logprobs": 2}, "logprobs"),
    ],
)
def test_bad_logprobs_of_a_chat_are_refused(fields: dict[str, object], param: str) -> None:
    assert refusal(chat_body, **fields).param == param


def test_min_tokens_above_the_limit_is_refused() -> None:
    error = refusal(chat_body, max_tokens=9, max_completion_tokens=4, min_tokens=5)

    assert (error.param, error.code) == ("min_tokens", "invalid_value")
    assert chat_body(min_tokens=500).min_tokens == 500
    assert chat_body(max_tokens=5, min_tokens=5).min_tokens == 5


@pytest.mark.parametrize("stop", ["", ["", ".x"], [".x", ""]])
def test_B18_an_empty_stop_string_is_refused(stop: object) -> None:
    error = refusal(completion_body, stop=stop)

    assert (error.param, error.code) == ("stop", "invalid_value")


def test_B18_B19_a_stop_string_of_broken_bytes_is_refused() -> None:
    error = refusal(completion_body, stop=["x", "a\ufffd"])

    assert (error.param, error.code) == ("stop", "invalid_value")
    assert "U+FFFD" in str(error)


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
        ("functions", [{}]),
        ("reasoning_effort", "low"),
        ("verbosity", "high"),
        ("service_tier", "flex"),
        ("store", True),
        ("prediction", {}),
        ("modalities", ["audio"]),
        ("chat_template", "x"),
        ("best_of", 2),
        ("stream", 0),
    ],
)
def test_B06_what_is_not_supported_yet_is_refused_by_name(field: str, value: object) -> None:
    error = refusal(chat_body, **{field: value})

    assert (error.param, error.code) == (field, "unsupported_parameter")
    assert field in str(error) and "not supported yet" in str(error)


def test_B06_what_completions_do_not_support_yet_is_refused_by_name() -> None:
    error = refusal(completion_body, suffix=5)

    assert (error.param, error.code) == ("suffix", "unsupported_parameter")


def test_only_a_completion_may_ask_for_no_token() -> None:
    body = completion_body(max_tokens=0, temperature=0.7, echo=True, logprobs=1)
    sampling = body.sampling(max_tokens=0, derived_seed=7)

    assert (sampling.max_tokens, sampling.seed, sampling.echo) == (0, 0, True)
    assert refusal(chat_body, max_tokens=0).param == "max_tokens"
    assert refusal(completion_body, echo=1).param == "echo"


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
    assert completion_body(best_of=1, echo=False, logprobs=None, suffix=None).prompt == ("hi",)
