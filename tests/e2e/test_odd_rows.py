"""Rows that go wrong, and rows at the edge of their parameters, in a file with others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from gristmill_process import Gristmill, answers_of, chat_line, read_lines

#: The token of the vocabulary whose hidden states are NaN in `broken_model`.
NAN_ID = 0
EVERY_ID = list(range(400))
TEMPERATURES = [0, 1e-6, 1e-5, 1e-4]


@pytest.fixture(scope="module")
def broken_model(tiny_model: Path) -> Path:
    """One token makes NaN of a row's logits; the folder asks for clean-up and for defaults."""
    import torch
    from transformers import LlamaForCausalLM

    folder = tiny_model.with_name("broken")  # so that it shares its cache
    shutil.copytree(tiny_model, folder)
    model = LlamaForCausalLM.from_pretrained(folder)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    with torch.no_grad():
        model.model.embed_tokens.weight[NAN_ID] = float("nan")
    model.save_pretrained(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["clean_up_tokenization_spaces"] = True
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    defaults = {"temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.3, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(defaults))
    return folder


def line(custom_id: str, prompt: object, **parameters: object) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 12, **parameters}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}


def good_lines() -> list[dict[str, Any]]:
    repeat, neutral = "Repeat: cat dog cat dog", {"temperature": 1, "top_p": 1}
    return [
        line("sampled", "Who is it", seed=3, logprobs=2),
        line("greedy", "Who is it", temperature=0, logprobs=20, logit_bias={"70": -100}),
        line("clean-up", "a , b . c ! d 's n't", echo=True, max_tokens=1, temperature=0),
        line("default", repeat, seed=7),
        line("neutral", repeat, seed=7, repetition_penalty=1, **neutral),
        line("zero", repeat, temperature=0),
        *(line(f"t{t}", repeat, temperature=t, seed=9, logprobs=1) for t in TEMPERATURES),
        line("narrow", repeat, temperature=1, top_p=1e-4, seed=9, logprobs=1),
    ]


def bad_lines() -> list[dict[str, Any]]:
    prompt = [NAN_ID, 30, 40]
    return [
        line("nan", prompt),
        line("nan-greedy", prompt, temperature=0, logprobs=2),
        line("nan-echo", prompt, max_tokens=0, echo=True, logprobs=1),
        line("nan-grammar", prompt, guided_choice=["yes", "no"]),
        line("no-token", "Who is it", min_tokens=2, stop_token_ids=EVERY_ID),
        line("no-token-in-grammar", "Who", guided_regex="a+b", stop_token_ids=EVERY_ID),
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, broken_model: Path) -> Gristmill:
    """Good rows with bad ones between them."""
    gristmill = Gristmill(tmp_path_factory.mktemp("odd"), broken_model)
    good, bad = good_lines(), bad_lines()
    gristmill.write([*bad[:2], *good[:3], *bad[2:4], *good[3:], *bad[4:]])
    done = gristmill.run()
    assert done.returncode == 4, done.stderr
    return gristmill


def choice_of(gristmill: Gristmill, custom_id: str) -> dict[str, Any]:
    (row,) = [row for row in read_lines(gristmill.output) if row["custom_id"] == custom_id]
    choice: dict[str, Any] = row["response"]["body"]["choices"][0]
    return choice


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def test_B63_rows_that_go_wrong_are_error_lines_and_the_others_unchanged(
    run: Gristmill, tmp_path: Path
) -> None:
    alone = Gristmill(tmp_path, run.model)
    alone.write(good_lines())
    assert alone.run().returncode == 0

    assert answers_of(run.output) == answers_of(alone.output)
    errors = {row["custom_id"]: row["response"] for row in read_lines(run.errors)}
    assert errors.keys() == {one["custom_id"] for one in bad_lines()}
    for custom_id, response in errors.items():
        error = response["body"]["error"]
        assert (response["status_code"], error["code"]) == (500, "model_output_invalid")
        said = "NaN" if custom_id.startswith("nan") else "no token"
        assert said in error["message"], error
    for path in (run.output, run.errors):
        for text in path.read_text(encoding="utf-8").splitlines():
            json.loads(text, parse_constant=refuse)


def test_B14_an_echo_is_the_prompt_to_the_character(run: Gristmill) -> None:
    assert choice_of(run, "clean-up")["text"].startswith("a , b . c ! d 's n't")


def test_B16_the_folders_defaults_are_not_used_and_zero_is_greedy(run: Gristmill) -> None:
    default, neutral, zero = (choice_of(run, name) for name in ("default", "neutral", "zero"))
    (receipt,) = [
        row["response"]["body"]["gristmill"]
        for row in read_lines(run.output)
        if row["custom_id"] == "default"
    ]

    assert default["text"] == neutral["text"] != zero["text"]
    assert zero["text"] == choice_of(run, "t0")["text"]
    params = receipt["params"]
    assert (params["temperature"], params["top_p"], params["repetition_penalty"]) == (1, 1, 1)


def test_B24_tiny_temperatures_are_greedy(run: Gristmill) -> None:
    found = [choice_of(run, f"t{t}") for t in TEMPERATURES] + [choice_of(run, "narrow")]

    assert len({choice["text"] for choice in found}) == 1
    values = [choice["logprobs"]["token_logprobs"] for choice in found]
    assert all(value == values[0] for value in values) and None not in values[0]


def test_B13_a_continued_message_is_not_repeated(
    run: Gristmill, tmp_path: Path, tiny_model: Path
) -> None:
    messages = [
        {"role": "user", "content": "Capital of France?"},
        {"role": "assistant", "content": "The answer is"},
    ]
    begun = "<|im_start|>user\nCapital of France?<|im_end|>\n<|im_start|>assistant\nThe answer is"
    options = {"messages": messages, "temperature": 0, "max_tokens": 6}
    chats, raw = (Gristmill(tmp_path / name, tiny_model) for name in ("chats", "raw"))
    for one in (chats, raw):
        one.folder.mkdir()
    chats.write(
        [
            chat_line("on", "", **options, continue_final_message=True),
            chat_line("new", "", **options),
        ]
    )
    raw.write(
        [
            line("on", begun, temperature=0, max_tokens=6),
            line("new", f"{begun}<|im_end|>\n<|im_start|>assistant\n", temperature=0, max_tokens=6),
        ]
    )
    for one in (chats, raw):
        assert one.run().returncode == 0

    for name in ("on", "new"):
        assert choice_of(chats, name)["message"]["content"] == choice_of(raw, name)["text"]
