"""The text of a chat is the one that transformers renders, whatever the template and the chat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from gristmill.requests.chat_template import ChatOptions
from gristmill.requests.rendering import ChatRenderer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: By what they use of what a template is given.
TEMPLATES = {
    "chatml": CHATML,
    "default system message": "{% if messages[0].role != 'system' %}Be helpful.\n{% endif %}"
    + CHATML,
    "special tokens": "{{ bos_token }}{% for m in messages %}{{ m.content | trim }}"
    "{{ eos_token | default('</s>') }}{{ pad_token is defined }}{% endfor %}",
    "the message as JSON": "{% for m in messages %}{{ m | tojson(indent=2) }}{% endfor %}"
    "{{ tools | tojson }}{{ documents is none }}",
    "which keys there are": "{% for m in messages %}{% for k, v in m.items() %}{{ k }}={{ v }};"
    "{% endfor %}{{ m.name is defined }}{{ m.reasoning_content }}{{ m.thinking }}|{% endfor %}",
    "calls of tools": CHATML
    + "{% for m in messages %}{% for call in m.tool_calls or [] %}{{ call.function.name }}"
    "({% for k, v in call.function.arguments.items() %}{{ k }}:{{ v }}{% endfor %})"
    "{% endfor %}{{ m.tool_call_id }}{% endfor %}"
    "{% if tools %}{% for t in tools %}{{ t.function.name }}{% endfor %}{% endif %}",
    "namespace and loop controls": "{% set ns = namespace(n=0) %}{% for m in messages %}"
    "{% set ns.n = ns.n + m.content | length %}{% if loop.index > 2 %}{% break %}{% endif %}"
    "{% endfor %}{{ ns.n }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% endfor %}",
    "blanks": "  {% if true %}\n  {{ messages[-1].content }}\n  {% endif %}\n\n",
    "a variable": CHATML + "{% if enable_thinking is defined and not enable_thinking %}<think>"
    "{{ lengths | default({}) | tojson }}{% endif %}{{ dict(a=1).a }}",
    "a variable over a special token": "{{ bos_token }}{{ messages[0].content }}{{ mood }}",
    "raises": "{% if messages[0].role == 'system' %}{{ raise_exception('no ' ~ messages[0].role) }}"
    "{% endif %}{{ messages[0].content }}",
    "changes what it is given": "{% set _ = messages.append({}) %}{{ messages | length }}",
    "looks inside": "{{ messages.__class__.__mro__ }}",
    "adds what cannot be added": "{{ messages[0].content + 1 }}",
    "is no template": "{% if %}",
}
USER: dict[str, Any] = {"role": "user", "content": " Hi <b>\u00e9\u2028\U0001f600 {{ x }} \n"}
CALL = {"name": "add", "arguments": {"a": 1, "b": [None, True, 2.5, {"c": "d"}]}}
CHATS: dict[str, list[dict[str, Any]]] = {
    "user": [USER],
    "system": [{"role": "system", "content": "Be brief."}, USER],
    "turns": [USER, {"role": "assistant", "content": "Hello"}, USER],
    "empty": [{"role": "user", "content": ""}],
    "tools": [
        {**USER, "name": None},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "type": "function", "function": CALL}],
        },
        {"role": "tool", "content": "3", "tool_call_id": "1", "name": "add"},
    ],
    "no content": [USER, {"role": "assistant", "content": None}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    "reasoning": [USER, {"role": "assistant", "content": "Yes", "reasoning": "Because"}],
    "other keys": [{**USER, "weather": {"is": None}}],
    "nothing": [],
    "assistant last": [USER, {"role": "assistant", "content": "The answer is "}],
}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
OPTIONS = [
    ChatOptions(),
    ChatOptions(add_generation_prompt=False),
    ChatOptions(add_generation_prompt=False, continue_final_message=True),
    ChatOptions(tools=[TOOL, TOOL]),
    ChatOptions(template_kwargs={"enable_thinking": False, "lengths": {"a": [1, None]}}),
    ChatOptions(template_kwargs={"bos_token": "<own>", "mood": "calm"}, tools=(TOOL,)),
]


def text_or_error(
    errors: tuple[type[Exception], ...], render: Callable[[], str]
) -> tuple[str, str]:
    try:
        return "text", render()
    except errors as error:
        return type(error).__name__, str(error)


def of_transformers(
    tokenizer: PreTrainedTokenizerBase, chat: list[dict[str, Any]], options: ChatOptions
) -> str:
    rendered: str = tokenizer.apply_chat_template(
        chat,
        tools=list(options.tools) or None,
        tokenize=False,
        add_generation_prompt=options.add_generation_prompt,
        continue_final_message=options.continue_final_message,
        **options.template_kwargs,
    )
    return rendered


@pytest.fixture(scope="module")
def tokenizer(make_model: Any) -> Any:
    return AutoTokenizer.from_pretrained(make_model().path)


def assert_all_equal(tokenizer: Any) -> int:
    renderer = ChatRenderer(tokenizer)
    num_texts = 0
    for options in OPTIONS:
        for chat in CHATS.values():
            ours, theirs = (
                text_or_error(renderer.errors, render)
                for render in (
                    lambda: renderer.render(chat, options),  # type: ignore[arg-type]  # noqa: B023
                    lambda: of_transformers(tokenizer, chat, options),  # noqa: B023
                )
            )
            assert ours == theirs
            num_texts += ours[0] == "text"
    return num_texts


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_chat_is_rendered_as_transformers_renders_it(tokenizer: Any, name: str) -> None:
    tokenizer.chat_template = TEMPLATES[name]

    assert_all_equal(tokenizer)


def test_a_template_of_its_own_for_tools_is_taken_where_there_are_tools(tokenizer: Any) -> None:
    tokenizer.chat_template = {"default": CHATML, "tool_use": TEMPLATES["calls of tools"]}

    assert assert_all_equal(tokenizer)


def test_a_tokenizer_that_renders_in_a_way_of_its_own_does_so(tokenizer: Any) -> None:
    class Own(type(tokenizer)):  # type: ignore[misc]
        def apply_chat_template(self, *args: Any, **options: Any) -> str:
            return "own: " + str(super().apply_chat_template(*args, **options))

    own = Own.from_pretrained(tokenizer.name_or_path)
    own.chat_template = CHATML

    assert ChatRenderer(own).render([{"role": "user", "content": "hi"}], OPTIONS[0]) == (
        "own: <|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_chat_is_not_changed_by_its_rendering(tokenizer: Any) -> None:
    tokenizer.chat_template = TEMPLATES["changes what it is given"]
    chat: Any = [{"role": "user", "content": "hi"}]

    with pytest.raises(ChatRenderer(tokenizer).errors, match="unsafe"):
        ChatRenderer(tokenizer).render(chat, OPTIONS[0])

    assert chat == [{"role": "user", "content": "hi"}]
