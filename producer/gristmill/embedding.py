"""How a vector is made from the hidden states of a prompt, and which models make nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

#: Endings of the class of a model whose folder has no head to generate with.
_WITHOUT_HEAD = ("Model", "ForMaskedLM", "ForPreTraining")
_GENERATING = ("LMHeadModel", "ForCausalLM", "ForConditionalGeneration")


class Pooling(StrEnum):
    """Which hidden states make the vector: their mean, that of the last token, of the first."""

    MEAN = "mean"
    LAST = "last"
    CLS = "cls"


@dataclass(frozen=True, slots=True)
class EmbeddingParams:
    """Every parameter of an embedding as it is in effect.

    The pooled vector is cut to its first `dimensions` numbers (None keeps all), then, if
    `normalize`, made one of length 1. `base64` says how it is written, not what it is.
    """

    pooling: Pooling
    normalize: bool
    dimensions: int | None = None
    base64: bool = False

    @property
    def pools_all_tokens(self) -> bool:
        """Whether tokens must be computed whose keys lie in a prefix cache."""
        return self.pooling is not Pooling.LAST


def generates_nothing(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a model without a language-model head.

    Without `architectures` it is taken for one that generates, which loading it finds out.
    """
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        return False
    name = str(architectures[0])
    return name.endswith(_WITHOUT_HEAD) and not name.endswith(_GENERATING)
