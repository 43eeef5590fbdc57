"""A row's result is its own: whatever its parameters, mates, order, preemptions and resumes are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from drive import make_engine, run
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import VOCAB_SIZE, prompts

from gristmill.types import Job, Prompt, Row, SamplingParams
from gristmill_worker.choices import of_choice
from gristmill_worker.engine.base import Finished, Generated

IDS = st.integers(3, VOCAB_SIZE - 1)
PARAMS = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(1, 24),
        "temperature": st.sampled_from([0.0, 0.0, 0.7, 1.0, 1.8]),
        "top_p": st.sampled_from([1.0, 0.9, 0.3]),
        "top_k": st.sampled_from([0, 1, 20]),
        "min_p": st.sampled_from([0.0, 0.1]),
        "frequency_penalty": st.sampled_from([0.0, 0.7, -0.5]),
        "presence_penalty": st.sampled_from([0.0, 1.0]),
        "repetition_penalty": st.sampled_from([1.0, 1.3, 0.8]),
        "seed": st.integers(0, 2**64 - 1),
        "logit_bias": st.dictionaries(IDS, st.floats(-9, 9, width=16), max_size=3).map(
            lambda bias: tuple(sorted(bias.items()))
        ),
        "min_tokens": st.sampled_from([0, 0, 5]),
        "stop": st.lists(IDS.map(lambda i: f"<{i}>"), max_size=2).map(tuple),
        "stop_token_ids": st.lists(IDS, max_size=2).map(tuple),
        "include_stop_str_in_output": st.booleans(),
        "ignore_eos": st.booleans(),
        "logprobs": st.sampled_from([None, 0, 4]),
    }
)


def told(end: Finished) -> list[object]:
    """All of a result but times and receipt."""
    assert end.error is None
    return [
        *(end.generated.token_ids, end.generated.logprobs, end.text, end.finish_reason),
        *(end.text_offsets, end.token_bytes, end.usage.completion_tokens),
    ]


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_row_gives_the_same_alone_in_company_preempted_and_resumed(
    model_pair: Any, compiled: Any, data: st.DataObject
) -> None:
    # Packed layers and our kernel give a row the same bits in any company.
    _, loaded = model_pair("llama", packed=True)
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=2, max_size=6))
    jobs = [
        Job((Row(i, str(i)),), (Prompt(tuple(prompt)),), SamplingParams(**data.draw(PARAMS)))
        for i, prompt in enumerate(prompts(lengths, seed=data.draw(st.integers(0, 9))))
    ]
    if data.draw(st.booleans()):  # another Choice of the first row shares its prompt
        jobs.append(of_choice(replace(jobs[0], params=replace(jobs[0].params, n=2)), 1))
    alone = [
        run(make_engine(loaded, block_size=16, attention=compiled), [("0", job)])["0"]
        for job in jobs
    ]
    order = data.draw(st.permutations(range(len(jobs))))
    # Little room, and no foresight: rows are thrown out and computed again.
    engine = make_engine(
        loaded,
        num_blocks=data.draw(st.sampled_from([5, 8, 20])),
        block_size=16,
        attention=compiled,
        expected_output_tokens=1.0,
        max_num_batched_tokens=data.draw(st.sampled_from([8, 32])),
    )

    for i in order:
        whole = alone[i].generated
        at = data.draw(st.integers(0, len(whole.token_ids)))
        begun = Generated(whole.token_ids[:at], whole.times_ms[:at], whole.logprobs[:at])
        engine.add(str(i), jobs[i], begun)
    together = run(engine, [])

    for i, end in enumerate(alone):
        assert told(together[str(i)]) == told(end)
