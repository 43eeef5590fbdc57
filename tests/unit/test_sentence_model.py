"""How a model makes vectors by its own account, and what it can be asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gristmill.embedding import Pooling
from gristmill.errors import ModelUnsupported
from gristmill.models import Model, find_model
from gristmill.settings import Settings
from gristmill.types import JobKind

BERT = {"architectures": ["BertModel"], "hidden_size": 384}
LLAMA = {"architectures": ["LlamaForCausalLM"], "hidden_size": 64}


def find(folder: Path, config: dict[str, Any], files: dict[str, Any] | None = None) -> Model:
    everything = {
        "config.json": {"vocab_size": 100, "max_position_embeddings": 512, **config},
        "tokenizer.json": {},
        **(files or {}),
    }
    for name, content in everything.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    (folder / "model.safetensors").write_bytes(b"weights")
    return find_model(str(folder), settings=Settings())


def modules(*kinds: str) -> list[dict[str, str]]:
    folders = {"Pooling": "1_Pooling"}
    return [
        {"type": f"sentence_transformers.models.{kind}", "path": folders.get(kind, "")}
        for kind in kinds
    ]


def pooling(**flags: bool) -> dict[str, Any]:
    return {"word_embedding_dimension": 384, **flags}


@pytest.mark.parametrize(
    ("config", "kinds", "expected"),
    [
        (BERT, {JobKind.EMBED}, Pooling.MEAN),
        ({**BERT, "architectures": ["RobertaForMaskedLM"]}, {JobKind.EMBED}, Pooling.MEAN),
        ({**BERT, "architectures": ["MistralModel"]}, {JobKind.EMBED}, Pooling.MEAN),
        (LLAMA, set(JobKind), Pooling.LAST),
        ({**LLAMA, "architectures": ["GPT2LMHeadModel"]}, set(JobKind), Pooling.LAST),
        ({"hidden_size": 8}, set(JobKind), Pooling.LAST),
    ],
)
def test_without_files_of_its_own_a_model_is_taken_by_its_kind(
    tmp_path: Path, config: dict[str, Any], kinds: set[JobKind], expected: Pooling
) -> None:
    model = find(tmp_path, config)

    assert model.kinds == kinds
    assert (model.embedding.pooling, model.embedding.normalize) == (expected, True)
    assert model.embedding.source == "the kind of the model"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, Pooling.CLS),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}, Pooling.MEAN),
        ({"pooling_mode_lasttoken": True}, Pooling.LAST),
        ({"pooling_mode": "lasttoken"}, Pooling.LAST),
    ],
)
@pytest.mark.parametrize("normalizes", [True, False])
def test_the_files_of_sentence_transformers_decide(
    tmp_path: Path, flags: dict[str, Any], expected: Pooling, normalizes: bool
) -> None:
    kinds = ["Transformer", "Pooling", *["Normalize"] * normalizes]
    files = {
        "modules.json": modules(*kinds),
        "1_Pooling/config.json": pooling(**flags),
        "sentence_bert_config.json": {"max_seq_length": 256, "do_lower_case": True},
    }

    model = find(tmp_path, BERT, files)

    assert (model.embedding.pooling, model.embedding.normalize) == (expected, normalizes)
    assert (model.embedding.source, model.embedding.lowercase) == ("modules.json", True)
    assert (model.embedding.size, model.max_model_len) == (384, 256)


def test_the_limit_of_the_tokenizer_bounds_what_only_embeds(tmp_path: Path) -> None:
    files = {"tokenizer_config.json": {"model_max_length": 300}}

    assert find(tmp_path / "bert", BERT, files).max_model_len == 300
    assert find(tmp_path / "llama", LLAMA, files).max_model_len == 512
    files = {"tokenizer_config.json": {"model_max_length": 10**30}}
    assert find(tmp_path / "none", BERT, files).max_model_len == 512


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"modules.json": modules("Transformer", "Pooling", "Dense")}, "Dense"),
        (
            {
                "modules.json": modules("Transformer", "Pooling"),
                "1_Pooling/config.json": pooling(pooling_mode_max_tokens=True),
            },
            "pooling",
        ),
        (
            {
                "modules.json": modules("Transformer", "Pooling"),
                "1_Pooling/config.json": pooling(
                    pooling_mode_cls_token=True, pooling_mode_mean_tokens=True
                ),
            },
            "pooling",
        ),
    ],
)
def test_a_vector_that_would_be_wrong_is_not_made(
    tmp_path: Path, files: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ModelUnsupported, match=reason):
        find(tmp_path / "bert", BERT, files)

    model = find(tmp_path / "llama", LLAMA, files)
    assert model.kinds == {JobKind.GENERATE, JobKind.SCORE}
    assert reason in model.embedding.unsupported


@pytest.mark.parametrize("content", [[{"type": 3}], {"a": 1}, [{"path": ""}]])
def test_a_modules_file_that_cannot_be_read_is_named(tmp_path: Path, content: Any) -> None:
    with pytest.raises(ModelUnsupported, match=r"modules\.json"):
        find(tmp_path, BERT, {"modules.json": content})
