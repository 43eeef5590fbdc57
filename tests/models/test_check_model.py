"""`gristmill-worker check-model`: what it says of a good model, a broken one and a refused one."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny import make_model, save_folder
from typer.testing import CliRunner, Result

from gristmill_worker import check
from gristmill_worker.attention.reference import ReferenceAttention
from gristmill_worker.cli import app


@pytest.fixture
def check_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("GRISTMILL_CACHE_DIR", str(tmp_path / "cache"))

    def run(path: Path, *options: str) -> Result:
        return CliRunner().invoke(app, ["check-model", str(path), *options])

    return run


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss"])
def test_a_good_model_is_exact(check_model: Any, tmp_path: Path, name: str) -> None:
    result = check_model(save_folder(tmp_path, make_model(name)))

    assert result.exit_code == 0, result.output
    assert "verdict          exact" in result.output
    assert "64 of 64 equal" in result.output
    assert "bytes a token" in result.output and "linear layers packed for" in result.output


def test_a_lower_precision_is_compared_with_itself(check_model: Any, tmp_path: Path) -> None:
    result = check_model(save_folder(tmp_path, make_model("llama")), "--dtype", "bfloat16")

    assert result.exit_code == 0, result.output
    assert "reference attention in plain torch, plain linear layers" in result.output


class _ForgetsWindows(ReferenceAttention):
    def forward(self, *args: Any) -> torch.Tensor:
        *others, rules = args
        return super().forward(*others, dataclasses.replace(rules, sliding_window=None))


def test_an_engine_that_is_wrong_is_found_out(
    check_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "choose_attention", lambda **_: _ForgetsWindows())

    result = check_model(save_folder(tmp_path, make_model("gemma3")))

    assert result.exit_code == 1
    assert "NOT EXACT" in result.output


def test_weights_that_are_not_numbers_are_found_out(check_model: Any, tmp_path: Path) -> None:
    model: Any = make_model("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] = float("nan")

    result = check_model(save_folder(tmp_path, model))

    assert result.exit_code == 1 and "NOT EXACT" in result.output


def test_a_refused_model_is_named_with_its_rule(check_model: Any, tmp_path: Path) -> None:
    config = transformers.DogeConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    config.save_pretrained(tmp_path)

    result = check_model(tmp_path)

    assert result.exit_code == 1
    assert "refused" in result.output and "(rule 4)" in result.output


def test_a_folder_without_a_model_is_an_error(check_model: Any, tmp_path: Path) -> None:
    result = check_model(tmp_path)

    assert result.exit_code == 1 and "config.json" in result.output
