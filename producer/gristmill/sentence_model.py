"""How a model makes vectors by its own account: the files that sentence-transformers writes.

    modules.json                 what follows the model: pooling, normalisation, and more
    1_Pooling/config.json        which hidden states are pooled
    sentence_bert_config.json    the longest text, and whether it is put into lower case

A model without them gets defaults by its kind: the last token of one that generates, the mean of
one that reads whole texts, and vectors of length 1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gristmill.embedding import Pooling, generates_nothing
from gristmill.errors import ModelUnsupported
from gristmill.model_folder import first_int, read_json

_SIZE_KEYS = ("hidden_size", "n_embd", "d_model", "dim")
#: transformers writes a number beyond all reason where a tokenizer has no limit.
_NO_LIMIT = 10**9
_POOLING_FLAGS = {
    "pooling_mode_cls_token": Pooling.CLS,
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_lasttoken": Pooling.LAST,
}
_POOLING_NAMES = {"cls": Pooling.CLS, "mean": Pooling.MEAN, "lasttoken": Pooling.LAST}


@dataclass(frozen=True, slots=True)
class EmbeddingDefaults:
    """The vectors of a model as it makes them unless a row asks for something else.

    `max_tokens` is the longest text that the model's makers mean it for. `source` says where the
    defaults come from. `unsupported` says why the model cannot embed here, if it cannot.
    """

    size: int
    pooling: Pooling
    normalize: bool
    source: str
    generates_nothing: bool
    max_tokens: int | None = None
    lowercase: bool = False
    unsupported: str = ""


def embedding_defaults(path: Path, config: Mapping[str, Any]) -> EmbeddingDefaults:
    """Raises ModelUnsupported for a model that can do nothing here, not even embed."""
    only_embeds = generates_nothing(config)
    size = first_int(config, _SIZE_KEYS)
    unsupported = "" if size else "its config.json does not say how long its vectors are"
    pooling, normalize = Pooling.MEAN if only_embeds else Pooling.LAST, True
    source = "the kind of the model"
    if (path / "modules.json").is_file():
        modules = _modules(path)
        unsupported = unsupported or _unknown_module(modules)
        normalize = any(kind == "Normalize" for kind, _ in modules)
        source = "modules.json"
        folder = next((folder for kind, folder in modules if kind == "Pooling"), None)
        if folder is not None:
            found = _pooling(path / folder / "config.json")
            unsupported = unsupported or ("" if found else "its pooling is not mean, last or cls")
            pooling = found or pooling
    if only_embeds and unsupported:
        raise ModelUnsupported(
            f"The model in {path} only makes vectors, and {unsupported}. Supported are mean, last "
            "and cls pooling, and normalisation; see README.md#models."
        )
    text = _text_config(path)
    return EmbeddingDefaults(
        size=size or 0,
        pooling=pooling,
        normalize=normalize,
        source=source,
        generates_nothing=only_embeds,
        max_tokens=first_int(text, ("max_seq_length",)) or _tokenizer_limit(path),
        lowercase=text.get("do_lower_case") is True,
        unsupported=unsupported,
    )


def _modules(path: Path) -> list[tuple[str, str]]:
    """(class, folder) of each module that a text passes through, in order."""
    try:
        modules = json.loads((path / "modules.json").read_bytes())
        return [(str(m["type"]).rpartition(".")[2], str(m.get("path", ""))) for m in modules]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelUnsupported(f"{path / 'modules.json'} cannot be read: {error!r}") from error


def _unknown_module(modules: list[tuple[str, str]]) -> str:
    kinds = [kind for kind, _ in modules]
    if kinds in (["Transformer"], ["Transformer", "Pooling"]):
        return ""
    if kinds == ["Transformer", "Pooling", "Normalize"]:
        return ""
    return f"its modules.json has {', '.join(kinds)}, which are not all known"


def _pooling(path: Path) -> Pooling | None:
    """The one mode that is set; None for several, or for one that is not known."""
    config = read_json(path) if path.is_file() else {}
    named = config.get("pooling_mode")
    if isinstance(named, str):
        return _POOLING_NAMES.get(named)
    is_set = [name for name, value in config.items() if name[:13] == "pooling_mode_" and value]
    return _POOLING_FLAGS.get(is_set[0]) if len(is_set) == 1 else None


def _tokenizer_limit(path: Path) -> int | None:
    file = path / "tokenizer_config.json"
    limit = first_int(read_json(file), ("model_max_length",)) if file.is_file() else None
    return limit if limit is not None and limit < _NO_LIMIT else None


def _text_config(path: Path) -> dict[str, Any]:
    file = path / "sentence_bert_config.json"
    return read_json(file) if file.is_file() else {}
