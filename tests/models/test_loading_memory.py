"""While a model is packed, its plain weights go as their packed ones come."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny import VOCAB_SIZE, make_model, make_packing, save_folder

from gristmill_worker.models import loader
from gristmill_worker.models.hook import ATTENTION
from gristmill_worker.models.large_pages import LargePages
from gristmill_worker.models.packed_weight import pack_model
from gristmill_worker.models.packing import PackedMatrix
from gristmill_worker.models.probe import CallRecorder, run_three_tokens

MAPS = Path("/proc/self/smaps")
MIB = 1 << 20


class WatchedPacking:
    """This machine's packing, which looks at something before each weight, and the last one."""

    name = "watched"

    def __init__(self, look: Callable[[], int]) -> None:
        self._packing, self._look = make_packing(), look
        self.seen: list[int] = []
        self.packed_bytes: list[int] = []

    def pack(self, weight: torch.Tensor) -> PackedMatrix:
        self.seen.append(self._look())
        self.packed_bytes.append(weight.nbytes)
        return self._packing.pack(weight)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_oss"])
def test_a_plain_weight_is_forgotten_once_it_is_packed(name: str) -> None:
    model: Any = make_model(name)
    model.set_attn_implementation(ATTENTION)
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet(
        p for p in model.parameters() if p.dim() >= 2
    )
    sizes = [weight.nbytes for weight in alive]
    packing = WatchedPacking(lambda: sum(weight.nbytes for weight in alive))

    pack_model(model, packing, lambda: run_three_tokens(model, CallRecorder()))

    packed = 0
    for seen, num_bytes in zip(packing.seen, packing.packed_bytes, strict=True):
        # A stack of experts goes as a whole, and a tied embedding stays.
        assert seen + packed <= sum(sizes) + max(sizes)
        packed += num_bytes
    assert sum(weight.nbytes for weight in alive) < sum(sizes) / 3  # embeddings and biases


def mapped_weights() -> list[int]:
    """The resident bytes of each mapped file of weights."""
    pattern = r"\.safetensors\n(?:\w+: .*\n)*?Rss: +(\d+) kB"
    return [int(found) * 1024 for found in re.findall(pattern, MAPS.read_text())]


@pytest.mark.skipif(not MAPS.exists(), reason="needs /proc")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_file_of_weights_leaves_memory_as_they_are_packed(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = transformers.LlamaConfig(
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=3,
        num_attention_heads=4,
        vocab_size=VOCAB_SIZE,
    )
    model = transformers.LlamaForCausalLM(config).to(getattr(torch, dtype))
    path = save_folder(tmp_path, model)
    of_all = (path / "model.safetensors").stat().st_size
    packing = WatchedPacking(lambda: sum(mapped_weights()))
    monkeypatch.setattr(loader, "choose_packing", lambda *_: packing)

    loader.load_model(path)

    assert mapped_weights() == []
    packed = 0
    for seen, num_bytes in zip(packing.seen, packing.packed_bytes, strict=True):
        # Some pages around each weight belong to two.
        assert seen <= (of_all - packed + MIB if dtype == "float32" else 0)
        packed += num_bytes


@pytest.mark.skipif(not MAPS.exists(), reason="needs /proc")
def test_large_pages_take_little_more_than_what_lies_in_them() -> None:
    memory = LargePages()
    pieces = [memory.empty((MIB // 4 * 3,)).fill_(1.0) for _ in range(24)]

    first = min(piece.data_ptr() for piece in pieces)
    resident = 0
    for block in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", MAPS.read_text()):
        begin, end = (int(address, 16) for address in block.split()[0].split("-"))
        if begin <= first < end:
            found = re.search(r"Rss: +(\d+) kB", block)
            resident = int(found[1]) * 1024 if found else 0
    assert resident <= 24 * 3 * MIB + 2 * MIB
