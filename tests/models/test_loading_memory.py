"""While a model is packed, its plain weights go as their packed ones come."""

from __future__ import annotations

import mmap
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


def mapped_bytes(file: Path) -> list[int]:
    """The resident bytes of each place where the file is mapped."""
    pattern = re.escape(str(file)) + r"\n(?:\w+: .*\n)*?Rss: +(\d+) kB"
    return [int(found) * 1024 for found in re.findall(pattern, MAPS.read_text())]


def resident_bytes(begin: int, end: int) -> int:
    """Of the pages that these addresses lie in."""
    page = mmap.PAGESIZE
    first, last = begin // page, -(-end // page)
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        pagemap.seek(first * 8)
        entries = memoryview(pagemap.read((last - first) * 8)).cast("Q")
    return page * sum(entry >> 63 for entry in entries)


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
    file = path / "model.safetensors"
    of_all = file.stat().st_size
    packing = WatchedPacking(lambda: sum(mapped_bytes(file)))
    monkeypatch.setattr(loader, "choose_packing", lambda *_: packing)

    loader.load_model(path)

    assert mapped_bytes(file) == []
    assert (packing.seen[0] > 0) == (dtype == "float32")  # others are converted at once
    packed = 0
    for seen, num_bytes in zip(packing.seen, packing.packed_bytes, strict=True):
        # Some pages around each weight belong to two.
        assert seen <= (of_all - packed + MIB if dtype == "float32" else 0)
        packed += num_bytes


@pytest.mark.skipif(not MAPS.exists(), reason="needs /proc")
def test_large_pages_take_little_more_than_what_lies_in_them() -> None:
    memory = LargePages()
    pieces = [memory.empty((MIB // 4 * 3,)).fill_(1.0) for _ in range(24)]

    begin = min(piece.data_ptr() for piece in pieces)
    end = max(piece.data_ptr() + piece.nbytes for piece in pieces)
    assert resident_bytes(begin, end + 8 * MIB) <= 24 * 3 * MIB + 2 * MIB
