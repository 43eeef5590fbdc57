"""Messages and prompts: what they may hold, and how a bad one is named."""

from __future__ import annotations

import pytest
from body import USER, VOCAB_SIZE, chat_body, completion_body, refusal

from gristmill.requests.chat_template import ChatOptions


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
        ([{"role": "function", "content": "hi"}], "messages[0].role", "unsupported_parameter"),
        ([{**USER[0], "name": "x"}], "messages[0].name", "unsupported_parameter"),
        ([{**USER[0], "tool_calls": []}], "messages[0].tool_calls", "unsupported_parameter"),
    ],
)
def test_a_bad_message_is_named_by_its_place(messages: object, param: str, code: str) -> None:
    error = refusal(chat_body, messages=messages)

    assert (error.param, error.code) == (param, code)


def test_options_of_a_chat() -> None:
    ends_with_assistant = [*USER, {"role": "assistant", "content": "a"}]

    assert chat_body().options == ChatOptions()
    assert chat_body(add_generation_prompt=True).options == ChatOptions()
    assert not chat_body(add_generation_prompt=False).options.add_generation_prompt
    for begins in (None, False):
        options = chat_body(
            messages=ends_with_assistant, continue_final_message=True, add_generation_prompt=begins
        ).options
        assert options == ChatOptions(False, True)
    assert chat_body(chat_template_kwargs={"a": [1]}).options.template_kwargs == {"a": [1]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"continue_final_message": True}, "continue_final_message"),  # the last one is the user's
        ({"continue_final_message": 1}, "continue_final_message"),
        ({"add_generation_prompt": "no"}, "add_generation_prompt"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"chat_template_kwargs": "a"}, "chat_template_kwargs"),
    ],
)
def test_options_that_do_not_go_together_are_refused(fields: dict[str, object], param: str) -> None:
    assert refusal(chat_body, **fields).param == param


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


def test_prompts_are_texts_or_lists_of_token_ids_one_or_several() -> None:
    assert completion_body(prompt=["hi"]).prompt == completion_body(prompt="hi").prompt == ("hi",)
    assert completion_body(prompt=[1, 2]).prompt == ((1, 2),)
    assert completion_body(prompt=[[1, 2]]).prompt == ((1, 2),)
    assert completion_body(prompt=[]).prompt == ((),)
    assert completion_body(prompt=["a", "", [1]]).prompt == ("a", "", (1,))
    for mixed in (["a", 1], [1, "a"], ["a", None]):
        assert refusal(completion_body, prompt=mixed).param == "prompt"
    assert refusal(completion_body, prompt=[[1], [-1]]).param == "prompt[1]"
    assert "1 to 2048" in str(refusal(completion_body, prompt=["a"] * 2049))


@pytest.mark.parametrize(
    "prompt", [[5, 999999999, -1], [-1], [VOCAB_SIZE], [True], [1.0], [None], 5, None, {}, [[True]]]
)
def test_B71_a_prompt_of_anything_but_token_ids_is_refused(prompt: object) -> None:
    assert refusal(completion_body, prompt=prompt).param == "prompt"


def test_a_long_value_is_cut_in_the_message() -> None:
    assert len(str(refusal(completion_body, temperature="x" * 10_000))) < 200
