"""Every causal language model of transformers: accepted and exact, or refused by the right rule.

The oracle is each row alone, eager, without cache, by transformers itself. What is accepted runs in
packed steps of chunked prefill, decode and new prefill over scattered Blocks, both on the plain
path and on the fast one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from drive import make_engine, run
from huggingface_hub.errors import StrictDataclassError
from packed import as_engine_takes_it, logits_alone, logits_packed, mixed_steps
from shrink import ALL, VOCAB_SIZE, make_oracle
from tiny import greedy_alone, greedy_job, score_job
from verdicts import NOT_BUILDABLE, REFUSED, SAMPLE

from gristmill.errors import ModelUnsupported
from gristmill_worker.attention.reference import ReferenceAttention
from gristmill_worker.models.loader import LoadedModel
from gristmill_worker.models.probe import CallRecorder, run_three_tokens

#: Around the edges of Blocks, and several windows long.
LENGTHS = [1, 15, 16, 17, 33, 40]
#: Largest difference of a logit, as a share of the largest logit: far above the rounding of
#: float32 (about 1e-6 here), far below what one wrong key does (about 1).
TOLERANCE = 3e-5


def rows_of(lengths: list[int], seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist() for length in lengths
    ]


def in_sample_or_slow(names: Any) -> list[Any]:
    return [pytest.param(n, marks=() if n in SAMPLE else pytest.mark.slow) for n in names]


@pytest.mark.parametrize("name", in_sample_or_slow(ALL))
def test_an_architecture_is_exact_or_refused_by_the_right_rule(
    name: str, compiled: Any, record_property: Callable[[str, object], None]
) -> None:
    if name in NOT_BUILDABLE:
        with pytest.raises((ImportError, StrictDataclassError)):
            make_oracle(name)
        record_property("architecture", "not buildable")
        return
    oracle = make_oracle(name)
    try:
        plain = as_engine_takes_it(oracle, packed=False)
    except ModelUnsupported as refusal:
        [rule] = re.findall(r"\(rule (\d)\)", str(refusal))
        assert int(rule) == REFUSED.get(name), f"verdicts.py says otherwise: {refusal}"
        assert "README.md#models" in str(refusal)
        record_property("architecture", f"refused by rule {rule}")
        return
    assert name not in REFUSED, "accepted, and verdicts.py says that it is refused"

    fast = as_engine_takes_it(oracle, packed=True)
    rows = rows_of(LENGTHS)
    steps = mixed_steps(LENGTHS, chunk=5, num_decoded=4)
    expected = logits_alone(oracle, rows)

    on_plain_path = logits_packed(plain, ReferenceAttention(), rows, steps, block_size=4)
    on_fast_path = logits_packed(fast, compiled, rows, steps, block_size=16)

    scale = max(float(logits.abs().max()) for logits in expected)
    for found in (on_plain_path, on_fast_path):
        for ours, theirs in zip(found, expected, strict=True):
            assert float((ours - theirs).abs().max()) <= TOLERANCE * scale
    finished = run(
        make_engine(fast, num_blocks=32, block_size=16, attention=compiled),
        [(str(i), greedy_job(row, 6)) for i, row in enumerate(rows)],
    )
    for i, row in enumerate(rows):
        assert list(finished[str(i)].generated.token_ids) == greedy_alone(oracle, row, 6)
    _check_scores(fast, compiled, rows, expected)
    record_property("architecture", "accepted and exact")


def _check_scores(
    loaded: LoadedModel, attention: Any, rows: list[list[int]], expected: list[torch.Tensor]
) -> None:
    """The head of each architecture, run over slices of hidden states, gives the model's logits."""
    engine = make_engine(loaded, num_blocks=32, block_size=16, attention=attention)
    ends = run(engine, [(str(i), score_job(row)) for i, row in enumerate(rows)])
    for i, (row, logits) in enumerate(zip(rows, expected, strict=True)):
        values = logits.double().log_softmax(-1)[range(len(row) - 1), row[1:]]
        found = torch.tensor([one.logprob for one in ends[str(i)].scored], dtype=torch.double)
        scale = max(1.0, float(logits.abs().max()))
        assert len(found) == len(row) - 1
        assert not len(row[1:]) or float((found - values).abs().max()) <= 2 * TOLERANCE * scale


def test_the_tables_name_each_architecture_once_and_count_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert not REFUSED.keys() & NOT_BUILDABLE.keys()
    assert REFUSED.keys() | NOT_BUILDABLE.keys() <= ALL.keys()
    num_accepted = len(ALL) - len(REFUSED) - len(NOT_BUILDABLE)
    by_rule = {
        rule: sum(1 for other in REFUSED.values() if other == rule) for rule in REFUSED.values()
    }
    with capsys.disabled():
        print(
            f"\n{len(ALL)} architectures: {num_accepted} accepted and exact, {len(REFUSED)} "
            f"refused (by rule: {dict(sorted(by_rule.items()))}), {len(NOT_BUILDABLE)} not "
            f"buildable ({', '.join(NOT_BUILDABLE)})"
        )
    # Nothing moves silently: a change of these numbers is a decision.
    assert sorted(NOT_BUILDABLE) == ["gemma3n", "gemma4_assistant"]
    assert num_accepted >= 95


def test_the_sample_shows_every_kind_of_attention() -> None:
    kinds: set[str] = set()
    for name in SAMPLE.keys() - REFUSED.keys():
        model = as_engine_takes_it(make_oracle(name), packed=False).model
        recorder = CallRecorder()
        run_three_tokens(model, recorder)
        specs = recorder.layer_specs()
        for call, spec in zip(recorder.calls, specs, strict=True):
            kinds |= {rule for rule, seen in _rules(call).items() if seen}
            kinds |= {"latent"} if spec.k_dim != spec.v_dim else set()
            kinds |= {"shared keys"} if spec.shares is not None else set()
            kinds |= {"grouped queries"} if call.query.shape[1] != spec.num_kv_heads else set()
        kinds |= (
            {"sizes by layer"} if len({(s.num_kv_heads, s.k_dim) for s in specs}) > 1 else set()
        )

    assert kinds == {"window", "softcap", "sinks", "latent"} | {
        "shared keys",
        "grouped queries",
        "sizes by layer",
    }


def _rules(call: Any) -> dict[str, bool]:
    rules = call.rules
    return {
        "window": rules.sliding_window is not None,
        "softcap": rules.softcap is not None,
        "sinks": rules.sinks is not None,
    }
