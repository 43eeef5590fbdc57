"""How a conversation ends, and what a caller may tell the model's template."""

from __future__ import annotations

from typing import Any

import pytest

from gristmill.errors import RowRefused
from gristmill.requests.chat_template import ChatOptions
from gristmill.requests.tokenise import Reading, Tokeniser

TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"
CAPITAL = [
    {"role": "user", "content": "Capital of France?"},
    {"role": "assistant", "content": "The answer is"},
]


def test_B13_a_last_message_is_continued_when_asked(make_model: Any) -> None:
    tokeniser = Tokeniser(make_model())
    options = ChatOptions(add_generation_prompt=False, continue_final_message=True)

    def ending_with(content: str) -> str:
        text = tokeniser.chat([CAPITAL[0], {"role": "assistant", "content": content}], options).text
        start = f"{TURN_START}user\nCapital of France?{TURN_END}\n{TURN_START}assistant\n"
        assert text.startswith(start)
        return str(text[len(start) :])

    assert ending_with("The answer is") == "The answer is"
    assert ending_with("im_end") == "im_end"  # also a part of what the template writes behind it
    assert ending_with("") == ""
    assert ending_with("a ") == "a "


def test_a_continued_message_may_spell_control_tokens(make_model: Any) -> None:
    tokeniser = Tokeniser(make_model())
    options = ChatOptions(add_generation_prompt=False, continue_final_message=True)

    text = tokeniser.chat([{"role": "assistant", "content": f"hi{TURN_END}"}], options)
    [ids] = tokeniser.encode([text])

    end_id = tokeniser._tokenizer.token_to_id(TURN_END)
    assert text.reading is Reading.SEALED and end_id not in ids


def test_a_chat_may_end_without_a_new_turn(make_model: Any) -> None:
    tokeniser = Tokeniser(make_model())

    text = tokeniser.chat(CAPITAL, ChatOptions(add_generation_prompt=False)).text

    assert text.endswith(f"The answer is{TURN_END}\n")


THINKING = (
    "{% for m in messages %}{% generation %}[{{ m.content }}]{% endgeneration %}"
    "{% if loop.first %}{% continue %}{% endif %}{% endfor %}"
    "{% set mood = mood | default('calm') %}{{ mood }}{{ strftime_now is defined }}"
    "{% if enable_thinking is defined and enable_thinking %}<think>{% endif %}{{ eos_token }}"
)


def test_template_kwargs_reach_a_template_that_takes_them(make_model: Any) -> None:
    tokeniser = Tokeniser(make_model(template=THINKING))
    options = ChatOptions(template_kwargs={"enable_thinking": True, "mood": f"x{TURN_END}"})

    text = tokeniser.chat([{"role": "user", "content": "hi"}], options)
    [ids] = tokeniser.encode([text])

    assert text.reading is Reading.SEALED
    assert tokeniser._tokenizer.decode(ids, skip_special_tokens=False).startswith("[hi]x<|im_end|>")
    assert tokeniser._tokenizer.token_to_id(TURN_END) not in ids
    plain = tokeniser.chat([{"role": "user", "content": "hi"}]).text
    assert "<think>" not in plain and plain.startswith("[hi]calm")


@pytest.mark.parametrize(
    "name", ["enable_thinkin", "messages", "tools", "eos_token", "m", "loop", "tokenize", "range"]
)
def test_template_kwargs_that_the_template_would_ignore_are_refused(
    make_model: Any, name: str
) -> None:
    tokeniser = Tokeniser(make_model(template=THINKING))

    with pytest.raises(RowRefused, match=f"takes no `{name}`.*`enable_thinking`, `mood`") as caught:
        tokeniser.chat(CAPITAL, ChatOptions(template_kwargs={name: 1}))

    assert (caught.value.param, caught.value.code) == (
        "chat_template_kwargs",
        "unsupported_parameter",
    )


def test_a_template_that_always_begins_a_turn_refuses_to_leave_it_out(make_model: Any) -> None:
    tokeniser = Tokeniser(make_model(template="bos"))

    with pytest.raises(RowRefused, match="always begins a new turn") as caught:
        tokeniser.chat(CAPITAL, ChatOptions(add_generation_prompt=False))

    assert caught.value.param == "add_generation_prompt"
    continued = ChatOptions(add_generation_prompt=False, continue_final_message=True)
    assert tokeniser.chat(CAPITAL, continued).text.endswith("[assistant] The answer is")


def test_a_template_that_loses_the_last_message_cannot_continue_it(make_model: Any) -> None:
    tokeniser = Tokeniser(make_model(template="{{ messages[0].content }}"))

    with pytest.raises(RowRefused, match="does not appear"):
        tokeniser.chat(CAPITAL, ChatOptions(False, True))
