"""Memory of the engine beyond interpreter and libraries, part by part, on the demo model.

Usage: memory.py [--rows 64] [--tokens 512] [--model FOLDER]

Rows of that many tokens, prompt and answer, run to their end. After each stage all resident pages
of the process are counted by what lies in them. The goal: beyond the weights once, the plain copy
of a tied embedding and the Blocks of the KV cache that were touched, not more than 15 % of the
weights; and while the model is loaded never more than twice its weights.

Libraries are the pages of their files, at any time, and all memory of the process at the first
stage, when the model's class has been imported and the first product made. Tokenizer, buffers of a
step and the engine's own objects are no libraries: they are in the parts of the last columns.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import gc
import itertools
import os
import random
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from _memory import forget_peak, peak_mib
from safetensors import safe_open
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

from gristmill.models import find_model
from gristmill.settings import Settings
from gristmill.types import Job, Prompt, Row, SamplingParams
from gristmill_worker.build import build_engine
from gristmill_worker.engine.engine import ContinuousBatchingEngine
from gristmill_worker.models.gguf import convert
from gristmill_worker.models.loader import LoadedModel, load_model
from gristmill_worker.models.product import CompiledMatrix

_MIB = 1 << 20
_PAGE = os.sysconf("SC_PAGESIZE")
_GOAL, _GOAL_LOADING = 0.15, 2.0
_PAGES_AT_ONCE = 1 << 14
#: Steps between two looks.
_LOOK_EVERY = 16
_COLUMNS = (
    "library files",
    "packed weights",
    "plain weights",
    "mapped weights",
    "KV cache",
    "C heap in use",
    "C heap kept",  # freed, and not given back
    "the rest",  # Python's objects, stacks, tensors outside of the heap
)
Parts = dict[str, float]


class _Mallinfo(ctypes.Structure):
    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


def resident(begin: int, end: int) -> float:
    """MiB of the pages from the one of `begin` to the one before `end` that are in memory."""
    first, last = begin // _PAGE, -(-end // _PAGE)
    num_pages = 0
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        pagemap.seek(first * 8)
        for page in range(first, last, _PAGES_AT_ONCE):  # few, since this is counted as well
            text = pagemap.read(min(_PAGES_AT_ONCE, last - page) * 8)
            num_pages += int((np.frombuffer(text, dtype=np.uint64) >> np.uint64(63)).sum())
    return num_pages * _PAGE / _MIB


def of_tensors(tensors: Iterable[torch.Tensor]) -> float:
    return sum(resident(t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors if t.nbytes)


@functools.cache
def packed_weights() -> list[torch.Tensor]:
    """Of the one model of this process, once it is loaded."""
    return [m._panels for m in gc.get_objects() if type(m) is CompiledMatrix]


def parts(loaded: LoadedModel | None, engine: ContinuousBatchingEngine | None) -> Parts:
    """MiB of each part, by name."""
    gc.collect()
    found = dict.fromkeys(_COLUMNS, 0.0)
    heap = anonymous = 0.0
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, *_, name = line.split(maxsplit=5) if line.count("/") else [*line.split(), ""]
        amount = resident(*(int(address, 16) for address in addresses.split("-")))
        if "[v" in line:  # pages of the kernel's
            continue
        if line.endswith(".safetensors"):
            found["mapped weights"] += amount
        elif name.startswith("/"):
            found["library files"] += amount
        elif line.endswith("[heap]"):
            heap += amount
        else:
            anonymous += amount
    if loaded is not None:
        found["packed weights"] = of_tensors(packed_weights())
        found["plain weights"] = of_tensors(loaded.model.parameters())
    if engine is not None:
        layers = [layer for layer in engine._runner.kv_cache.layers if layer.is_written]
        found["KV cache"] = of_tensors(t for layer in layers for t in (layer.keys, layer.values))
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Mallinfo
    found["C heap in use"] = mallinfo().uordblks / _MIB
    found["C heap kept"] = heap - found["C heap in use"]
    named = found["packed weights"] + found["plain weights"] + found["KV cache"]
    found["the rest"] = anonymous - named
    return found


def show(stage: str, found: Parts) -> None:
    cells = [f"{found[column]:.0f}" for column in _COLUMNS]
    print(f"| {stage} | {' | '.join(cells)} | {sum(found.values()):.0f} |", flush=True)


def answer(engine: ContinuousBatchingEngine, loaded: LoadedModel, rows: int, tokens: int) -> Parts:
    """Runs the rows to their end; the parts when most was held beside the KV cache."""
    chance = random.Random(1)
    new_tokens = tokens // 4
    params = SamplingParams(new_tokens, temperature=0.0, ignore_eos=True)
    for n in range(rows):
        ids = (chance.randrange(3, loaded.vocab_size) for _ in range(tokens - new_tokens))
        engine.add(str(n), Job((Row(n, str(n)),), (Prompt(tuple(ids)),), params))
    most: Parts = {}
    for num_steps in itertools.count(1):
        engine.step()
        if num_steps % _LOOK_EVERY and engine.num_live:
            continue
        found = parts(loaded, engine)
        if not most or beside_kv(found) > beside_kv(most):
            most = found
        if not engine.num_live:
            return most


def beside_kv(found: Parts) -> float:
    return sum(found.values()) - found["KV cache"] - found["library files"]


def weights_mib(folder: Path) -> float:
    """The weights once, in float32."""
    numbers = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="np") as file:
            numbers += sum(int(np.prod(file.get_slice(k).get_shape())) for k in file.keys())  # noqa: SIM118
    return numbers * 4 / _MIB


def measure(folder: Path | None = None, *, rows: int = 64, tokens: int = 512) -> float:
    """Prints all parts; gives what is held beyond weights and KV cache, of the weights."""
    settings = Settings()
    if folder is None:
        folder = Path(find_model("smollm2-135m", settings=settings, convert_gguf=convert).path)
    config = AutoConfig.from_pretrained(folder)
    MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]  # imports it
    torch.mm(torch.ones(8, 8), torch.ones(8, 8))  # what torch starts with its first product
    print(f"| MiB after | {' | '.join(_COLUMNS)} | all |")
    print("|---" * (len(_COLUMNS) + 2) + "|")
    begun = parts(None, None)
    show("imports", begun)

    forget_peak()
    loaded = load_model(folder, cache_dir=settings.cache_dir)
    loading_peak = peak_mib() - sum(begun.values())
    show("loading", parts(loaded, None))
    engine = build_engine(loaded, cache_dir=settings.cache_dir, max_num_seqs=rows)
    show("the engine is built", parts(loaded, engine))
    forget_peak()
    most = answer(engine, loaded, rows, tokens)
    show("a step, at most", most)
    running_peak = peak_mib()
    last = parts(loaded, engine)
    show("the run", last)

    weights = weights_mib(folder)
    embedding = loaded.model.get_input_embeddings().weight.nbytes / _MIB
    copies = embedding if config.get_text_config().tie_word_embeddings else 0.0
    print(f"\nweights once {weights:.0f} MiB; plain copy of a tied embedding {copies:.0f} MiB")
    held = beside_kv(most) - beside_kv(begun)
    beyond = held - weights - copies
    print(
        f"beyond weights, KV cache and libraries {beyond:.0f} MiB, {beyond / weights:.1%} of the "
        f"weights (goal: {_GOAL:.0%}); with pages of library files touched since the imports "
        f"{(beyond + last['library files'] - begun['library files']) / weights:.1%}"
    )
    moment = running_peak - sum(begun.values()) - last["KV cache"] - weights - copies
    print(f"most at any moment of the run, such pages included {moment / weights:.1%}")
    print(
        f"most while loading {loading_peak:.0f} MiB, {loading_peak / weights:.2f} of the weights "
        f"(goal: {_GOAL_LOADING:.0f})",
        flush=True,
    )
    return beyond / weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--model", type=Path, help="a folder of safetensors")
    arguments = parser.parse_args()
    measure(arguments.model, rows=arguments.rows, tokens=arguments.tokens)


if __name__ == "__main__":
    main()
