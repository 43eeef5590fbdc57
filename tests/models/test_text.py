"""Stop strings, text and counts, with the real tokenizer and models that say what a script says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from drive import make_engine, run
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import greedy_job
from tokenizers import Tokenizer

from gristmill.types import FinishReason
from gristmill_worker.engine.base import Finished, Generated
from gristmill_worker.engine.detokenizer import StopStrings, final_text
from gristmill_worker.models.loader import LoadedModel

pytestmark = pytest.mark.real_model

VOCAB_SIZE, END_OF_TURN = 49_152, 2
PROMPT = [504, 2988, 314]


class Scripted(torch.nn.Module):
    """Picks the listed ids one after the other, then the end token. It has no attention."""

    def __init__(self, script: list[int]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1), requires_grad=False)
        self.script = script

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        use_cache: bool,
        logits_to_keep: torch.Tensor,
    ) -> Any:
        logits = torch.zeros(1, len(logits_to_keep), VOCAB_SIZE)
        for i, position in enumerate(position_ids[0, logits_to_keep].tolist()):
            step = position - len(PROMPT) + 1
            ended = step >= len(self.script)
            logits[0, i, END_OF_TURN if ended else self.script[step]] = 9.0
        return type("Output", (), {"logits": logits})


@pytest.fixture(scope="module")
def tokenizer(smollm2_folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(smollm2_folder / "tokenizer.json"))


def answer(
    tokenizer: Tokenizer, script: list[int], max_tokens: int = 64, **params: Any
) -> Finished:
    loaded = LoadedModel(
        model=Scripted(script),
        layers=(),
        max_model_len=256,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=frozenset([END_OF_TURN]),
        tokenizer=tokenizer,
    )
    engine = make_engine(loaded, num_blocks=400)
    job = greedy_job(PROMPT, max_tokens)
    job = replace(job, params=replace(job.params, **params))
    return run(engine, [("row", job)])["row"]


def force(tokenizer: Tokenizer, token_id: int, max_tokens: int, **params: Any) -> Finished:
    return answer(tokenizer, [], max_tokens, logit_bias=((token_id, 100.0),), **params)


@pytest.mark.parametrize(
    ("script", "stop", "text", "num_tokens"),
    [
        ([19556, 421, 421, 421], [" ha ha"], "Hello", 3),
        ([23143, 2903, 42, 905], ["servation:"], "Ob", 3),  # starts and ends inside tokens
        ([19556, 905, 42], ["rld:", "o wo"], "Hell", 2),  # the earliest match wins
        ([19556, END_OF_TURN], [], "Hello", 2),
    ],
)
def test_B18_stop_strings_cut_exactly(
    tokenizer: Tokenizer, script: list[int], stop: list[str], text: str, num_tokens: int
) -> None:
    finished = answer(tokenizer, script, stop=tuple(stop))

    assert finished.text == text
    assert finished.finish_reason is FinishReason.STOP
    assert finished.usage.completion_tokens == num_tokens


def test_B64_lists_have_an_entry_for_each_token_also_behind_a_stop_string(
    tokenizer: Tokenizer,
) -> None:
    finished = answer(tokenizer, [23143, 2903, 42, 905], stop=("servation:",), logprobs=2)

    assert finished.text == "Ob" and finished.usage.completion_tokens == 3
    assert len(finished.generated.logprobs) == 3
    assert list(finished.text_offsets) == [
        0,
        2,
        2,
    ]  # "Obs", "ervation", ":"; the text ends in the first
    assert [finished.token_bytes[i] for i in finished.generated.token_ids] == [
        *(b"Obs", b"ervation", b":")
    ]


def test_B64_a_sampled_token_is_reported_although_it_is_not_likely(tokenizer: Tokenizer) -> None:
    finished = force(tokenizer, 905, 2, logprobs=1, temperature=1.0)

    [first, second] = finished.generated.logprobs
    assert finished.generated.token_ids == (905, 905)
    assert [token_id for token_id, _ in first.top] == [END_OF_TURN]
    assert first.logprob == second.logprob < first.top[0][1]


def test_B18_a_stop_string_that_is_part_of_a_token(tokenizer: Tokenizer) -> None:
    newline = force(tokenizer, 1116, 8, stop=("\n",))
    space = force(tokenizer, 459, 3, stop=(" ",))  # bytes 20 E2 80: a space, then half a character

    assert (newline.text, newline.usage.completion_tokens) == ("", 1)
    assert (space.text, space.usage.completion_tokens) == ("", 1)
    assert newline.finish_reason is space.finish_reason is FinishReason.STOP


@pytest.mark.parametrize(
    ("script", "stop", "text", "num_tokens"),
    [
        ([19556, 421, 421, 421], [" ha ha"], "Hello ha ha", 3),
        ([23143, 2903, 42, 905], ["servation:"], "Observation:", 3),
        ([19556, 905, 42], ["rld:", "o wo"], "Hello wo", 2),
        ([19556, END_OF_TURN], [], "Hello", 2),
    ],
)
def test_a_stop_string_is_kept_to_its_last_character_when_asked(
    tokenizer: Tokenizer, script: list[int], stop: list[str], text: str, num_tokens: int
) -> None:
    finished = answer(tokenizer, script, stop=tuple(stop), include_stop_str_in_output=True)

    assert (finished.text, finished.usage.completion_tokens) == (text, num_tokens)


@pytest.mark.parametrize(
    ("min_tokens", "text", "num_tokens"),
    [
        (0, "Hello", 2),
        (1, "Hello", 2),
        (2, "Hello ha", 3),  # the first " ha" is exempt; the second ends the row
        (3, "Hello ha ha", 4),
        (9, "Hello" + " ha" * 8, 10),
    ],
)
def test_a_stop_string_within_min_tokens_does_not_count(
    tokenizer: Tokenizer, min_tokens: int, text: str, num_tokens: int
) -> None:
    finished = answer(tokenizer, [19556, *[421] * 20], stop=(" ha",), min_tokens=min_tokens)

    assert (finished.text, finished.usage.completion_tokens) == (text, num_tokens)


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ([18310, 112, 27991, 239, 15076, 132], "客单价"),
        ([40303, 218], " 😀"),
        ([104, 6541, 329], "x != y"),  # B14
        ([1195, 2229, 637, 17009, 23], "the word 'social'"),  # B14
    ],
)
def test_B19_B14_text_is_one_full_decode(
    tokenizer: Tokenizer, script: list[int], text: str
) -> None:
    assert answer(tokenizer, script).text == text
    assert answer(tokenizer, script, stop=("never",)).text == text


@pytest.mark.parametrize(
    ("token_id", "max_tokens", "text"),
    [
        (10813, 4, "\ufffd\ufffd\ufffd\ufffd"),
        (28532, 2, "\u05d9\ufffd\u05d9\ufffd"),
        (459, 3, " \ufffd \ufffd \ufffd"),
    ],
)
def test_B19_incomplete_bytes_are_flushed_at_the_end(
    tokenizer: Tokenizer, token_id: int, max_tokens: int, text: str
) -> None:
    assert force(tokenizer, token_id, max_tokens).text == text
    assert force(tokenizer, token_id, max_tokens, stop=("never",)).text == text


@pytest.mark.parametrize("max_tokens", [1, 5, 20])
def test_B23_the_limit_is_length_and_counted_exactly(tokenizer: Tokenizer, max_tokens: int) -> None:
    finished = force(tokenizer, 260, max_tokens)

    assert finished.finish_reason is FinishReason.LENGTH
    assert finished.usage.completion_tokens == max_tokens
    assert finished.text == " the" * max_tokens


@pytest.mark.parametrize("max_tokens", [3, 5])
def test_B23_an_end_at_the_limit_is_stop(tokenizer: Tokenizer, max_tokens: int) -> None:
    finished = answer(tokenizer, [19556, 905, END_OF_TURN], max_tokens)

    assert finished.finish_reason is FinishReason.STOP
    assert finished.usage.completion_tokens == 3


def test_ignore_eos_goes_on_to_the_limit(tokenizer: Tokenizer) -> None:
    finished = answer(tokenizer, [19556, END_OF_TURN, 905], 5, ignore_eos=True)

    assert finished.finish_reason is FinishReason.LENGTH
    assert finished.generated.token_ids == (19556, END_OF_TURN, 905, END_OF_TURN, END_OF_TURN)
    assert finished.text == "Hello world"


@settings(max_examples=150, deadline=None)
@given(
    ids=st.lists(
        st.one_of(st.integers(0, VOCAB_SIZE - 1), st.sampled_from([459, 10813, 28532, 218, 40303])),
        min_size=1,
        max_size=80,
    ),
    data=st.data(),
)
def test_watching_finds_a_stop_exactly_when_the_full_text_has_it(
    tokenizer: Tokenizer, ids: list[int], data: st.DataObject
) -> None:
    text = tokenizer.decode(ids)
    at = data.draw(st.integers(0, max(0, len(text) - 1)))
    stop = [text[at : at + data.draw(st.integers(1, 6))].strip("\ufffd") or "zzz", "never there"]
    if any("\ufffd" in s for s in stop):
        return
    min_tokens = data.draw(st.sampled_from([0, 0, 1, 7]))
    exempt = len(tokenizer.decode(ids[:min_tokens]).rstrip("\ufffd")) if min_tokens else 0
    watch = StopStrings(tokenizer, stop, min_tokens)

    found = next((n for n in range(1, len(ids) + 1) if watch.feed(ids[:n])), None)

    def holds_stop(text: str) -> bool:
        return any(s in text[max(0, exempt + 1 - len(s)) :] for s in stop)

    first = next(
        (n for n in range(min_tokens + 1, len(ids) + 1) if holds_stop(tokenizer.decode(ids[:n]))),
        None,
    )
    assert found == first
    if found is not None:
        cut = final_text(tokenizer, ids[:found], stop, min_tokens=min_tokens)
        assert not holds_stop(cut)
        kept = final_text(tokenizer, ids[:found], stop, min_tokens=min_tokens, include_stop=True)
        assert any(kept == cut + s for s in stop)
        resumed = StopStrings(tokenizer, stop, min_tokens)
        assert resumed.feed(ids[: found - 1]) is False if found > 1 else True
        assert resumed.feed(ids[:found])


def test_a_row_that_ended_in_its_checkpoint_ends_at_once(tokenizer: Tokenizer) -> None:
    loaded = LoadedModel(
        Scripted([19556, 905]), (), 256, VOCAB_SIZE, frozenset([END_OF_TURN]), tokenizer
    )
    engine = make_engine(loaded, num_blocks=400)
    done = Generated((19556, 905, END_OF_TURN), (5, 6, 7))
    engine.add("ended", greedy_job(PROMPT, 64), done)
    engine.add("stopped", greedy_job(PROMPT, 64, stop=("world",)), Generated((19556, 905), (5, 6)))

    finished = {end.seq_id: end for end in engine.step().finished}

    assert finished["ended"].text == "Hello world" and finished["ended"].generated == done
    assert finished["stopped"].text == "Hello "
    assert engine.num_live == 0
