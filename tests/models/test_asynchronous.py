"""Steps that are launched before the one before them has been read, by the same code on a CPU.

That rows get the same bits is test_rows_are_their_own.py's, which turns this on and off at random.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ascii_tokenizer import with_text
from drive import fail_a_step, make_engine, run
from paper_device import on_paper
from tiny import greedy_alone, greedy_job, prompts

from gristmill.types import FinishReason, Grammar, GrammarKind, Job, Prompt, Row, SamplingParams
from gristmill_worker.attention.decode import GatherDecode
from gristmill_worker.attention.paged import PagedAttention
from gristmill_worker.attention.prefill import SdpaPrefill
from gristmill_worker.engine.base import Finished
from gristmill_worker.engine.engine import ContinuousBatchingEngine


def job(row: list[int], max_tokens: int, **params: Any) -> Job:
    return Job((Row(0, "row"),), (Prompt(tuple(row)),), SamplingParams(max_tokens, **params))


#: What a row may ask for that is found on the device, and what takes the host between two steps.
ON_THE_DEVICE: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 1.0, "seed": 4, "top_p": 0.9, "logprobs": 2},
    {"temperature": 0.7, "seed": 5, "top_k": 5, "logit_bias": ((5, 2.0),)},
    {"temperature": 0.7, "seed": 6, "min_p": 0.1, "min_tokens": 4},
    {"temperature": 0.0, "logprobs": 0},
]
BY_THE_HOST: list[dict[str, Any]] = [
    {"temperature": 1.0, "seed": 7, "frequency_penalty": 0.5},
    {"temperature": 1.0, "seed": 8, "grammar": Grammar(GrammarKind.REGEX, "[a-c]{2,9}(x|yz)")},
]


class Log:
    """What the host does with the results of steps: asks for them, and reads them later."""

    def __init__(self, engine: ContinuousBatchingEngine) -> None:
        self.events: list[tuple[str, int]] = []
        self._fetch = engine._launcher.fetch
        engine._launcher.fetch = self.fetch

    def fetch(self, *tensors: torch.Tensor) -> Callable[[], list[torch.Tensor]]:
        number = sum(name == "launched" for name, _ in self.events)
        self.events.append(("launched", number))
        copies = self._fetch(*(tensor.clone() for tensor in tensors))

        def wait() -> list[torch.Tensor]:
            self.events.append(("read", number))
            return copies()

        return wait


def test_a_step_is_read_when_the_next_one_has_been_launched(model_pair: Any) -> None:
    oracle, loaded = model_pair("llama")
    engine = make_engine(loaded, asynchronous=True, draft_fixed_tokens=0)
    log = Log(engine)
    rows = prompts([3, 40, 9])

    finished = run(engine, [(str(i), greedy_job(row, 8)) for i, row in enumerate(rows)])

    for i, row in enumerate(rows):
        assert list(finished[str(i)].generated.token_ids) == greedy_alone(oracle, row, 8)
    num_steps = len(log.events) // 2
    expected = [("launched", 0)]
    for n in range(1, num_steps):
        expected += [("launched", n), ("read", n - 1)]
    assert log.events == [*expected, ("read", num_steps - 1)]


@pytest.mark.parametrize("by_length", [True, False])
def test_between_two_launches_the_host_waits_for_nothing(
    model_pair: Any, monkeypatch: pytest.MonkeyPatch, by_length: bool
) -> None:
    loaded = with_text(dataclasses.replace(model_pair("llama")[1], row_kernels=None))
    attention = PagedAttention(GatherDecode(by_length=by_length), SdpaPrefill())
    engine = make_engine(
        loaded, attention=attention, asynchronous=True, draft_fixed_tokens=0, num_blocks=96
    )
    monkeypatch.setattr("gristmill_worker.engine.draw._NUM_AT_ONCE", 200)
    wishes = [*ON_THE_DEVICE, *BY_THE_HOST]
    for i, row in enumerate(prompts([3, 20, 33, 9, 1, 40, 7, 8])):
        engine.add(str(i), job(row, 8, **wishes[i]))
    num_reads = 0

    with on_paper(engine, monkeypatch) as paper:

        def fetch(*tensors: torch.Tensor) -> Callable[[], list[torch.Tensor]]:
            def wait() -> list[torch.Tensor]:
                nonlocal num_reads
                num_reads += 1
                return [paper.on_host(tensor) for tensor in tensors]

            return wait

        engine._launcher.fetch = fetch
        num_steps = 0
        while engine.num_live:
            num_steps += bool(engine.step().num_rows)

    assert paper.faults == []
    assert num_reads == num_steps > 8


def test_the_paper_device_sees_what_makes_the_host_wait(
    model_pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The synchronous engine looks whether the likeliest tokens suffice for a row with limits."""
    _, loaded = model_pair("llama")
    engine = make_engine(loaded, attention=PagedAttention(GatherDecode(), SdpaPrefill()))
    engine.add("row", job([5, 6, 7], 1, temperature=1.0, top_p=0.9))

    with on_paper(engine, monkeypatch) as paper:
        engine.step()
        device = paper.put(torch.ones(3))
        for waits in (
            lambda: device.sum().item(),
            lambda: bool(device[0] > 0),
            lambda: device[device > 0],
            lambda: device[[0, 1]],
            lambda: device + torch.tensor([1.0, 2.0, 3.0]),
        ):
            paper.faults.clear()
            waits()
            assert paper.faults

    assert not torch.cuda.is_initialized()


def totals(engine: ContinuousBatchingEngine, jobs: dict[str, Job]) -> tuple[Any, list[int]]:
    """How the rows ended, and the sums of what the steps say: prefilled, decoded, advanced."""
    for name, wanted in jobs.items():
        engine.add(name, wanted)
    ends: dict[str, Finished] = {}
    sums = [0, 0, 0]
    while engine.num_live:
        before = {name: engine.generated(name).token_ids for name in jobs.keys() - ends.keys()}
        output = engine.step()
        ends |= {end.seq_id: end for end in output.finished}
        for name, ids in before.items():
            now = ends[name].generated if name in ends else engine.generated(name)
            assert now.token_ids[: len(ids)] == ids
            assert len(now.token_ids) - len(ids) == output.advanced.count(name)
            assert len(now.token_ids) == len(now.times_ms)
        new = (output.num_prefill_tokens, output.num_decode_tokens, len(output.advanced))
        sums = [one + more for one, more in zip(sums, new, strict=True)]
        engine.block_manager.check_integrity(engine.scheduler.running)
    assert engine.block_manager.num_free_blocks == engine.num_blocks
    results = {
        name: (e.generated.token_ids, e.generated.logprobs, e.text, e.finish_reason, e.usage)
        for name, e in ends.items()
    }
    return results, sums


def test_counts_and_results_are_those_of_the_synchronous_engine(
    model_pair: Any, compiled: Any
) -> None:
    """Also what the prefix cache saves, and with rows that end in ways nobody foresees."""
    loaded = with_text(model_pair("llama", packed=True)[1])
    [shared] = prompts([48], seed=2)
    jobs = {
        str(i): job([*shared, i], 6 + i, **wish, stop_token_ids=tuple(range(3, 199, 11)))
        for i, wish in enumerate([*ON_THE_DEVICE, *BY_THE_HOST] * 2)
    }
    exact = {"block_size": 16, "attention": compiled, "draft_fixed_tokens": 0, "num_blocks": 40}

    plain = totals(make_engine(loaded, **exact), jobs)
    ahead = totals(make_engine(loaded, asynchronous=True, **exact), jobs)

    assert ahead == plain
    reasons = {reason for *_, reason, _ in plain[0].values()}
    assert reasons == {FinishReason.STOP, FinishReason.LENGTH}


def test_rows_for_which_the_candidates_do_not_suffice_draw_again(
    model_pair: Any, compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, loaded = model_pair("llama", packed=True)
    monkeypatch.setattr("gristmill_worker.engine.draw._NUM_AT_ONCE", 16)
    jobs = {
        str(i): job(row, 16, temperature=0.4 + i / 4, top_p=0.9, seed=i, logprobs=2)
        for i, row in enumerate(prompts([3, 20, 9, 33]))
    }
    exact = {"block_size": 16, "attention": compiled, "draft_fixed_tokens": 0}
    engine = make_engine(loaded, asynchronous=True, **exact)
    undecided = []
    make_void = engine.scheduler.make_void
    engine.scheduler.make_void = lambda seq: (  # type: ignore[method-assign]
        undecided.append(seq.num_tokens_under_way),
        make_void(seq),
    )[1]

    assert totals(engine, jobs) == totals(make_engine(loaded, **exact), jobs)
    assert any(undecided), "all tokens were decided"


def test_a_row_ends_at_its_limit_and_at_the_window_and_computes_nothing_behind(
    model_pair: Any,
) -> None:
    _, loaded = model_pair("llama")
    engine = make_engine(  # a window of 32
        loaded, num_blocks=8, asynchronous=True, draft_fixed_tokens=0, prefix_caching=False
    )
    longest = []
    runs = engine._runner.run
    engine._runner.run = lambda batch: (  # type: ignore[method-assign]
        longest.append(int(batch.positions.max())),
        runs(batch),
    )[1]

    ends = run(engine, [("window", greedy_job([5] * 10, 500, ignore_eos=True))])
    assert ends["window"].usage.completion_tokens == 22 and max(longest) == 30
    longest.clear()
    ends = run(engine, [("limit", greedy_job([5] * 10, 7, ignore_eos=True))])

    assert ends["limit"].usage.completion_tokens == 7 and max(longest) == 15


def test_a_row_that_is_cancelled_under_way_may_come_back_under_its_name(model_pair: Any) -> None:
    oracle, loaded = model_pair("llama")
    engine = make_engine(loaded, asynchronous=True, draft_fixed_tokens=0)
    first, second, other = prompts([9, 6, 12])
    engine.add("row", greedy_job(first, 20))
    engine.add("other", greedy_job(other, 20))
    for _ in range(4):
        engine.step()

    engine.cancel("row")
    engine.add("row", greedy_job(second, 20))
    finished = run(engine, [])

    assert list(finished["row"].generated.token_ids) == greedy_alone(oracle, second, 20)
    assert list(finished["other"].generated.token_ids) == greedy_alone(oracle, other, 20)


def test_what_is_under_way_when_all_are_cancelled_is_dropped(model_pair: Any) -> None:
    oracle, loaded = model_pair("llama")
    engine = make_engine(loaded, asynchronous=True)
    [prompt] = prompts([9])
    engine.add("gone", greedy_job(prompt, 20))
    engine.step()
    engine.cancel("gone")
    assert engine.block_manager.num_free_blocks == engine.num_blocks

    output = engine.step()

    assert (output.num_rows, output.advanced, output.finished) == (0, [], [])
    found = run(engine, [("row", greedy_job(prompt, 5))])["row"].generated.token_ids
    assert list(found) == greedy_alone(oracle, prompt, 5)


def test_a_launch_that_fails_can_be_tried_again(model_pair: Any) -> None:
    oracle, loaded = model_pair("llama")
    engine = make_engine(loaded, asynchronous=True, draft_fixed_tokens=0)
    [prompt] = prompts([9])
    engine.add("row", greedy_job(prompt, 9))
    engine.step()
    engine.step()
    fail_a_step(engine)

    found = run(engine, [])["row"].generated.token_ids
    assert list(found) == greedy_alone(oracle, prompt, 9)


def test_logits_that_are_no_numbers_end_their_row_and_nobody_finds_its_blocks(
    model_pair: Any,
) -> None:
    """Its neighbour begins alike, and is planned before the host has seen what is wrong."""
    oracle, loaded = model_pair("llama")
    engine = make_engine(loaded, asynchronous=True, draft_fixed_tokens=0, max_num_seqs=2)
    [prompt] = prompts([16])
    runs = engine._runner.run
    is_first = True

    def spoils(batch: Any) -> torch.Tensor:
        nonlocal is_first
        logits = runs(batch)
        if is_first:
            is_first = False
            for layer in engine._runner.kv_cache.layers:
                layer.keys[:] = float("nan")
            logits = torch.full_like(logits, float("nan"))
        return logits

    engine._runner.run = spoils  # type: ignore[method-assign]
    finished = run(
        engine, [("bad", greedy_job([*prompt, 7], 9)), ("good", greedy_job([*prompt, 8], 9))]
    )

    assert finished["bad"].error and finished["bad"].error.code == "model_output_invalid"
    assert list(finished["good"].generated.token_ids) == greedy_alone(oracle, [*prompt, 8], 9)
