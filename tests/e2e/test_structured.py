"""Structured output and tools through the whole command, also when it is killed in between."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from gristmill_process import Gristmill, answers_of, chat_line, read_lines

TEMPLATE = (
    "{% for t in tools or [] %}{{ t | tojson }} <tool_call>{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORD = {"type": "string", "maxLength": 6}
PERSON = {
    "type": "object",
    "properties": {"name": WORD, "age": {"type": "integer", "minimum": 0, "maximum": 20000000000}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "greet", "parameters": PERSON}}


def schema(properties: dict[str, Any], **others: Any) -> dict[str, Any]:
    value = {**PERSON, "properties": properties, "required": list(properties), **others}
    return {"type": "json_schema", "json_schema": {"name": "r", "strict": True, "schema": value}}


def lines() -> list[dict[str, Any]]:
    """16 schemas, and other forms; some rows are cut, one is refused."""
    sampled = {"temperature": 1, "max_tokens": 40}
    different = [
        schema({f"p{i}": {"enum": [i, str(i)]}, **({"q": WORD} if i % 2 else {})})
        for i in range(16)
    ]
    rows = [
        chat_line(f"schema-{i}", f"Who? {i}", seed=i, response_format=one, **sampled)
        for i, one in enumerate(different)
    ]
    rows += [
        chat_line(
            f"tool-{i}",
            "Greet",
            tools=[TOOL],
            tool_choice=choice,
            parallel_tool_calls=None if choice == "auto" else False,
            seed=i,
            max_tokens=20 if choice == "auto" else 200,
        )
        for i, choice in enumerate(["required", {**TOOL, "function": {"name": "greet"}}, "auto"])
    ]
    rows += [
        chat_line("n", "Who?", response_format=schema({"name": WORD}), n=2, seed=5, **sampled),
        chat_line("regex", "When?", guided_regex="[0-9]{2}:[0-9]{2}", **sampled),
        chat_line("choice", "Yes?", structured_outputs={"choice": ["yes", "no"]}, **sampled),
        chat_line("cut", "Who?", response_format=schema({"name": WORD}), max_tokens=2),
        chat_line("bad", "Who?", response_format=schema({"name": {"not": {}}})),
        chat_line("plain", "Hi", ignore_eos=True, temperature=0, max_tokens=60),
    ]
    return rows


@pytest.fixture(scope="module")
def with_tools(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    folder = tmp_path_factory.mktemp("models") / "with-tools"
    shutil.copytree(tiny_model, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, with_tools: Path) -> Gristmill:
    gristmill = Gristmill(tmp_path_factory.mktemp("undisturbed"), with_tools)
    gristmill.write(lines())
    done = gristmill.run("--max-num-seqs", "16")
    assert done.returncode == 4, done.stderr
    return gristmill


def choices_of(gristmill: Gristmill, custom_id: str) -> list[dict[str, Any]]:
    (row,) = [row for row in read_lines(gristmill.output) if row["custom_id"] == custom_id]
    choices: list[dict[str, Any]] = row["response"]["body"]["choices"]
    return choices


def test_B27_every_document_that_ended_is_what_its_schema_says(undisturbed: Gristmill) -> None:
    finished = 0
    for i in range(16):
        (choice,) = choices_of(undisturbed, f"schema-{i}")
        if choice["finish_reason"] == "length":
            continue
        finished += 1
        text = choice["message"]["content"]
        document = json.loads(text)
        assert list(document) == ([f"p{i}", "q"] if i % 2 else [f"p{i}"])
        assert document[f"p{i}"] in (i, str(i)) and not text[-1].isspace()
    assert finished > 8
    both = choices_of(undisturbed, "n")
    assert [list(json.loads(choice["message"]["content"])) for choice in both] == [["name"]] * 2
    (cut,) = choices_of(undisturbed, "cut")
    assert cut["finish_reason"] == "length" and cut["message"]["content"].startswith('{"')
    (row,) = read_lines(undisturbed.errors)
    error = row["response"]["body"]["error"]
    assert (row["custom_id"], row["response"]["status_code"]) == ("bad", 400)
    assert (error["param"], error["code"]) == ("response_format", "invalid_grammar")
    assert choices_of(undisturbed, "regex")[0]["message"]["content"][2] == ":"
    assert choices_of(undisturbed, "choice")[0]["message"]["content"] in ("yes", "no")


def test_B06_tools_are_called_where_they_must_be(undisturbed: Gristmill) -> None:
    for custom_id in ("tool-0", "tool-1"):
        (choice,) = choices_of(undisturbed, custom_id)
        assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "greet"
        assert set(json.loads(call["function"]["arguments"])) == {"name", "age"}
    (auto,) = choices_of(undisturbed, "tool-2")
    assert auto["message"]["content"], "a random model calls nothing"


def test_kill_9_and_the_answers_are_the_same(undisturbed: Gristmill, tmp_path: Path) -> None:
    gristmill = Gristmill(tmp_path, undisturbed.model)
    options = ("--flush-interval", "10ms", "--max-num-seqs", "2")  # and preempted, in other company
    gristmill.write(lines())
    # More than what a row refused and a beginning take.
    with gristmill.held(*options, segments=5) as process:
        process.kill()

    done = gristmill.run(*options, "--json")

    assert done.returncode == 4, done.stderr
    assert json.loads(done.stdout)["tokens_resumed"] > 0
    assert answers_of(gristmill.output) == answers_of(undisturbed.output)
