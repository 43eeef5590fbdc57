"""Rows of several LoRA adapters and of none share steps, and each is as the model alone has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from drive import make_engine, run
from lora import merged, of, save_adapter, with_adapters
from spy import LogitsSpy
from test_embeddings import embed_job, plain_vector
from test_scoring import agree
from test_step_graph import make_graph_engine
from tiny import greedy_alone, greedy_job, prompts, score_job

from gristmill.embedding import Pooling
from gristmill.types import Job
from gristmill_worker.models.loader import LoadedModel

ENDS = {
    "llama": ("q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"),
    "gpt2": ("c_attn", "c_fc"),
    "gpt_neox": ("query_key_value", "dense_4h_to_h"),
}


def jobs_of(rows: list[list[int]], adapters: Mapping[str, Any], max_tokens: int) -> dict[str, Job]:
    return {
        f"{adapter}/{i}": of(adapter, greedy_job(row, max_tokens, ignore_eos=True))
        for i, row in enumerate(rows)
        for adapter in adapters
    }


@pytest.mark.parametrize(
    ("name", "packed"), [("llama", False), ("llama", True), ("gpt2", True), ("gpt_neox", True)]
)
def test_rows_of_adapters_equal_the_merged_model_alone(
    name: str, packed: bool, model_pair: Any, compiled: Any, tmp_path: Path
) -> None:
    oracle, loaded = model_pair(name, packed=packed)
    one = save_adapter(tmp_path / "one", oracle, ends=ENDS[name], rank=4)
    two = save_adapter(tmp_path / "two", oracle, ends=ENDS[name][:1], rank=3, seed=2)
    loaded = with_adapters(loaded, packed=packed, one=one, two=two)
    oracles = {"": oracle, "one": merged(oracle, one, 2.0), "two": merged(oracle, two, 8 / 3)}
    rows = prompts([1, 9, 33], seed=3)
    engine = make_engine(
        loaded, block_size=16, attention=compiled if packed else None, max_num_batched_tokens=40
    )

    finished = run(engine, jobs_of(rows, oracles, 5).items())

    seen = set()
    for seq_id, end in finished.items():
        adapter, _, i = seq_id.partition("/")
        ids = list(end.generated.token_ids)
        assert ids == greedy_alone(oracles[adapter], rows[int(i)], 5, eos=False)
        seen.add((i, *ids))
    assert len(seen) > 2 * len(rows)  # adapters matter


def watched(
    loaded: LoadedModel, jobs: Mapping[str, Job], attention: Any, **limits: Any
) -> dict[str, list[torch.Tensor]]:
    engine = make_engine(loaded, block_size=16, attention=attention, **limits)
    spy = LogitsSpy(engine)
    finished = run(engine, jobs.items())
    num_tokens = {
        s: len(jobs[s].prompt_ids) + len(e.generated.token_ids) for s, e in finished.items()
    }
    return {
        seq_id: [row for n, row in sorted(spy.logits[seq_id].items()) if n < num_tokens[seq_id]]
        for seq_id in jobs
    }


@pytest.mark.parametrize("own_kernel", [True, False])
def test_a_row_of_an_adapter_has_the_same_bits_in_any_company(
    own_kernel: bool, model_pair: Any, compiled: Any, tmp_path: Path
) -> None:
    oracle, plain = model_pair("llama", packed=True)
    folders = {
        name: save_adapter(tmp_path / name, oracle, rank=rank, seed=rank)
        for name, rank in (("one", 1), ("two", 17))
    }
    loaded = with_adapters(plain, packed=own_kernel, **folders)
    if not own_kernel:  # as it is where no C compiler is
        from gristmill_worker.models.adapter_files import load_adapters
        from gristmill_worker.models.packing import OneDnnPacking

        adapters = load_adapters(plain.model, folders, OneDnnPacking())
        loaded = replace(plain, adapters=adapters)
    jobs = jobs_of(prompts([1, 15, 33], seed=4), ["", "one", "two"], 4)
    alone = {
        seq_id: watched(loaded if job.adapter else plain, {seq_id: job}, compiled)[seq_id]
        for seq_id, job in jobs.items()
    }

    for limits in (
        {"max_num_batched_tokens": 16, "max_num_seqs": 3},
        {"max_num_batched_tokens": 512},
        {"num_blocks": 8, "expected_output_tokens": 1.0, "prefix_caching": False},
    ):
        together = watched(loaded, jobs, compiled, **limits)

        for seq_id in jobs:
            assert len(together[seq_id]) == len(alone[seq_id])
            assert all(map(torch.equal, together[seq_id], alone[seq_id])), (seq_id, limits)


def test_a_prefix_is_shared_within_one_adapter_alone(model_pair: Any, tmp_path: Path) -> None:
    oracle, loaded = model_pair("llama")
    one = save_adapter(tmp_path / "one", oracle)
    two = save_adapter(tmp_path / "two", oracle, seed=2)
    loaded = with_adapters(loaded, packed=False, one=one, two=two)
    oracles = {"": oracle, "one": merged(oracle, one, 2.0), "two": merged(oracle, two, 2.0)}
    [row] = prompts([30], seed=6)
    jobs = jobs_of([row], oracles, 4)
    engine = make_engine(loaded, num_blocks=128)

    first = run(engine, jobs.items())
    again = run(engine, jobs.items())

    for seq_id in jobs:
        assert first[seq_id].usage.cached_tokens == 0
        assert again[seq_id].usage.cached_tokens == 29
        expected = greedy_alone(oracles[seq_id.partition("/")[0]], row, 4, eos=False)
        assert list(again[seq_id].generated.token_ids) == expected


def test_a_prompt_is_scored_by_its_adapter(model_pair: Any, tmp_path: Path) -> None:
    oracle, loaded = model_pair("llama", packed=True)
    one = save_adapter(tmp_path / "one", oracle)
    loaded = with_adapters(loaded, packed=True, one=one)
    [text] = prompts([20], seed=7)
    jobs = {"": score_job(text, 3, top=2), "one": of("one", score_job(text, 3, top=2))}

    ends = run(make_engine(loaded, max_num_batched_tokens=16), jobs.items())

    assert agree(oracle, text, 3, ends[""].scored)
    assert agree(merged(oracle, one, 2.0), text, 3, ends["one"].scored)


@pytest.mark.parametrize("pooling", Pooling)
def test_a_vector_is_made_by_its_adapter(pooling: Pooling, model_pair: Any, tmp_path: Path) -> None:
    oracle, loaded = model_pair("llama", packed=True)
    one = save_adapter(tmp_path / "one", oracle)
    loaded = with_adapters(loaded, packed=True, one=one)
    [text] = prompts([11], seed=7)

    end = run(make_engine(loaded), [("row", of("one", embed_job(text, pooling)))])["row"]

    expected = plain_vector(merged(oracle, one, 2.0), text, pooling)
    assert torch.allclose(torch.tensor(end.embedding), expected.float(), atol=1e-4)


def test_decode_graphs_run_no_step_with_rows_of_an_adapter(model_pair: Any, tmp_path: Path) -> None:
    oracle, loaded = model_pair("llama")
    one = save_adapter(tmp_path / "one", oracle)
    oracles = {"": oracle, "one": merged(oracle, one, 2.0)}
    engine, capture = make_graph_engine(with_adapters(loaded, packed=False, one=one))
    rows = prompts([5, 12], seed=8)
    adapted = {s: job for s, job in jobs_of(rows, oracles, 5).items() if job.adapter}

    run(engine, adapted.items())
    num_replayed = sum(capture.replays)
    finished = run(engine, jobs_of(rows, oracles, 5).items())
    run(engine, [("base", greedy_job(rows[0], 5, ignore_eos=True))])

    assert num_replayed == 0 < sum(capture.replays)
    for seq_id, end in finished.items():
        adapter, _, i = seq_id.partition("/")
        expected = greedy_alone(oracles[adapter], rows[int(i)], 5, eos=False)
        assert list(end.generated.token_ids) == expected


def test_ranks_and_scales_are_those_of_the_configuration(model_pair: Any, tmp_path: Path) -> None:
    oracle, loaded = model_pair("llama")
    first = "model.layers.0.self_attn.q_proj"
    one = save_adapter(
        tmp_path / "one",
        oracle,
        ends=("q_proj", "v_proj"),
        ranks={first: 9},
        use_rslora=True,
        rank_pattern={"layers.0.self_attn.q_proj": 9},
        alpha_pattern={r".*\.v_proj": 2},
        target_modules=r"model\.layers\.\d+\.self_attn\.(q|v)_proj",
    )
    loaded = with_adapters(loaded, packed=False, one=one)
    scales = {f"model.layers.{i}.self_attn.v_proj": 2 / 4**0.5 for i in range(2)}
    scales |= {first: 8 / 9**0.5, "model.layers.1.self_attn.q_proj": 8 / 4**0.5}
    [text] = prompts([12], seed=8)

    end = run(make_engine(loaded), [("row", of("one", score_job(text)))])["row"]

    assert agree(merged(oracle, one, scales), text, 1, end.scored)


def test_an_adapter_that_is_not_loaded_is_refused_row_by_row(model_pair: Any) -> None:
    _, loaded = model_pair("llama")

    end = run(make_engine(loaded), [("row", of("strange", greedy_job([5, 6], 3)))])["row"]

    assert end.error is not None and end.error.code == "model_not_found"
    assert "strange" in end.error.message and "--adapter" in end.error.message


def test_steps_without_rows_of_adapters_are_what_they_were(
    model_pair: Any, compiled: Any, tmp_path: Path
) -> None:
    oracle, plain = model_pair("llama", packed=True)
    loaded = with_adapters(plain, packed=True, one=save_adapter(tmp_path / "one", oracle))
    engine = make_engine(loaded, block_size=16, attention=compiled)
    before = [vars(module).copy() for module in loaded.model.modules()]

    run(engine, [("with", of("one", greedy_job([4, 5, 6], 3)))])

    assert [vars(module) for module in loaded.model.modules()] == before
    assert (engine._runner._layers is None) == (
        make_engine(plain, block_size=16, attention=compiled)._runner._layers is None
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_rows_equal_peft_itself_alone(name: str, model_pair: Any, tmp_path: Path) -> None:
    import copy

    from peft import LoraConfig, PeftModel, get_peft_model

    oracle, loaded = model_pair(name, packed=True)
    settings: dict[str, dict[str, Any]] = {
        "listed": {"target_modules": list(ENDS[name]), "r": 5, "lora_alpha": 20},
        "all": {"target_modules": "all-linear", "r": 4, "use_rslora": True},
        "patterns": {
            "target_modules": rf".*\.({'|'.join(ENDS[name])})",
            "rank_pattern": {ENDS[name][0]: 7},
            "alpha_pattern": {ENDS[name][1]: 32},
            "fan_in_fan_out": name == "gpt2",
        },
        "one_layer": {"target_modules": list(ENDS[name]), "layers_to_transform": [1]},
    }
    for n, (adapter, config) in enumerate(settings.items()):
        torch.manual_seed(n)
        trained: Any = get_peft_model(
            copy.deepcopy(oracle), LoraConfig(task_type="CAUSAL_LM", **config)
        )
        for parameter_name, parameter in trained.named_parameters():
            if "lora_" in parameter_name:
                torch.nn.init.normal_(parameter, std=0.15)
        trained.save_pretrained(tmp_path / adapter)
    folders = {adapter: tmp_path / adapter for adapter in settings}
    loaded = with_adapters(loaded, packed=True, **folders)
    rows = prompts([3, 24], seed=9)
    texts = prompts([20], seed=10)
    jobs = jobs_of(rows, settings, 8)
    jobs |= {f"score {a}": of(a, score_job(texts[0], top=2)) for a in settings}

    finished = run(make_engine(loaded, num_blocks=256), jobs.items())

    for adapter, folder in folders.items():
        alone = PeftModel.from_pretrained(copy.deepcopy(oracle), folder).eval()
        for i, row in enumerate(rows):
            ids = list(finished[f"{adapter}/{i}"].generated.token_ids)
            assert ids == greedy_alone(_by_ids(alone), row, 8, eos=False)
        assert agree(_by_ids(alone), texts[0], 1, finished[f"score {adapter}"].scored)


def _by_ids(model: Any) -> Any:
    """PEFT takes nothing but names."""
    return lambda ids, **more: model(input_ids=ids, **more)
