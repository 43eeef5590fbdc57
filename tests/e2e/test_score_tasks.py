"""Each task of scoring on a tiny model, in this process, against plain passes of the model."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from score_oracle import Oracle, rows

from gristmill.data import read_rows
from gristmill.local import Progress
from gristmill.score import (
    Embedded,
    Gold,
    Interrupted,
    Judge,
    Loglikelihood,
    Perplexity,
    Prompt,
    Report,
    Template,
    report_files,
    score,
)
from gristmill.settings import Settings


@pytest.fixture(scope="module")
def oracle(tiny_model: Path) -> Oracle:
    return Oracle(tiny_model)


@pytest.fixture
def embedded(tiny_model: Path) -> Embedded:
    settings = Settings(cache_dir=tiny_model.with_name("cache"), num_threads=1)
    return Embedded(str(tiny_model), settings=settings)


def scored(task: Any, embedded: Embedded, output: Path, **options: Any) -> tuple[Report, list[Any]]:
    report = score(rows(8), task, embedded, output=output, num_resamples=20, **options)
    return report, list(read_rows(output))


def test_targets_and_texts_have_the_numbers_of_a_plain_computation(
    embedded: Embedded, oracle: Oracle, tmp_path: Path
) -> None:
    target = Loglikelihood(Prompt(Template("{text} is"), chat=False), Template(" {sentiment}"))

    report, found = scored(target, embedded, tmp_path / "a.parquet", id_column="id")
    rolled, texts = scored(Perplexity(Template("{text}")), embedded, tmp_path / "b.jsonl.gz")

    sums = [oracle.continuation(f"{row['text']} is", f" {row['sentiment']}") for row in found]
    assert [row["logprob"] for row in found] == pytest.approx(sums, rel=1e-5)
    tokens = sum(row["num_tokens"] for row in found)
    assert report.figures["perplexity of a token"].value == pytest.approx(
        math.exp(-sum(sums) / tokens), rel=1e-4
    )
    schema = pq.read_schema(tmp_path / "a.parquet")
    kinds = {name: str(schema.field(name).type) for name in ("logprob", "is_greedy", "num_tokens")}
    assert kinds == {"logprob": "double", "is_greedy": "bool", "num_tokens": "int64"}
    assert found[0]["receipt"]["dtype"] == "float32" and found[0]["receipt"]["seed"] is not None
    end = oracle.tokenizer.eos_token_id
    for row in texts:
        ids = [end, *oracle.tokenizer.encode(row["text"])]
        assert row["logprob"] == pytest.approx(math.fsum(oracle.logprobs(ids, 1)), rel=1e-5)
    bits = -sum(row["logprob"] for row in texts) / math.log(2)
    assert rolled.figures["bits of a byte"].value == pytest.approx(
        bits / sum(len(row["text"].encode()) for row in texts), rel=1e-4
    )


def test_a_judge_is_scored_behind_the_chat_template(
    embedded: Embedded, oracle: Oracle, tmp_path: Path
) -> None:
    judge = Judge(
        Prompt(Template("Rate {text}"), Template("Be strict.")), ("1", "2", "10"), Gold("gold")
    )
    data = [{**row, "gold": 10} for row in rows(6)]

    report = score(data, judge, embedded, output=tmp_path / "a.jsonl", num_resamples=20)

    for row in read_rows(tmp_path / "a.jsonl"):
        messages = [
            {"role": "system", "content": "Be strict."},
            {"role": "user", "content": f"Rate {row['text']}"},
        ]
        head = oracle.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
        ids = oracle.tokenizer.encode(head, add_special_tokens=False)
        one, two, ten = (oracle.tokenizer.encode(x) for x in ("1", "2", "10"))
        masses = [
            math.exp(math.fsum(oracle.logprobs([*ids, *own], len(ids)))) for own in (one, two, ten)
        ]
        assert ten[: len(one)] == one, "the answer 10 begins as the answer 1"
        masses[0] -= masses[2]
        shares = [mass / sum(masses) for mass in masses]
        assert row["probabilities"] == pytest.approx(shares, rel=1e-4)
        assert row["expected"] == pytest.approx(shares[0] + 2 * shares[1] + 10 * shares[2])
        assert row["receipt"]["template_hash"]
    assert report.findings.confusion is not None
    assert sum(report.findings.confusion.counts[2]) == 6


def test_a_judge_writes_its_reason_first_and_the_answer_is_one_that_is_allowed(
    embedded: Embedded, tmp_path: Path
) -> None:
    judge = Judge(Prompt(Template("Rate {text}")), ("1", "2", "3"), reason_chars=12)

    report, found = scored(judge, embedded, tmp_path / "a.jsonl")

    good = [row for row in found if row["error_code"] is None]
    assert good, found
    assert report.num_failed == len(found) - len(good)
    for row in good:
        assert row["prediction"] in ("1", "2", "3") and len(row["reason"]) <= 12
        assert sum(row["probabilities"]) == pytest.approx(1)
        best = row["probabilities"].index(max(row["probabilities"]))
        assert str(best + 1) == row["prediction"], "greedy decoding takes the likeliest"


def test_a_row_that_is_refused_is_in_the_output_with_its_error(
    embedded: Embedded, tmp_path: Path
) -> None:
    data = [{"text": "short"}, {"text": "too long " * 900}, {"text": "short too"}]
    task = Loglikelihood(Prompt(Template("{text}"), chat=False), Template(" {text}"))

    report = score(data, task, embedded, output=tmp_path / "a.csv", num_resamples=20)

    found = list(read_rows(tmp_path / "a.csv"))
    assert [row["error_code"] for row in found] == ["", "context_length_exceeded", ""]
    assert found[1]["logprob"] == "" and "Shorten" in found[1]["error_message"]
    assert report.failed == {"context_length_exceeded": 1} and report.num_rows == 3
    assert "context_length_exceeded" in Path(
        report_files(tmp_path / "a.csv")["markdown"]
    ).read_text().replace("\\", "")


def test_a_scoring_that_is_stopped_goes_on_where_it_was(embedded: Embedded, tmp_path: Path) -> None:
    seen: list[Progress] = []
    stopping = replace(
        embedded,
        on_progress=seen.append,
        should_stop=lambda: any(one.completed >= 4 for one in seen),
    )
    settings = (embedded.settings or Settings()).model_copy(
        update={"shard_max_jobs": 2, "flush_interval_s": 0.01, "max_num_seqs": 1}
    )
    resumed: list[Progress] = []
    task = Perplexity(Template("{text}"))
    output = tmp_path / "a.jsonl"

    with pytest.raises(Interrupted, match="goes on"):
        score(iter(rows()), task, replace(stopping, settings=settings), output=output)
    assert not output.exists()
    going_on = replace(embedded, settings=settings, on_progress=resumed.append)
    report = score(iter(rows()), task, going_on, output=output, num_resamples=0)

    assert resumed[0].completed >= 4
    assert report.num_rows == len(rows()) and not report.failed
    assert not Path(f"{output}.work").exists()
