"""The speed of earlier runs feeds an estimate, and can never break a run."""

from __future__ import annotations

from gristmill.cli.throughput import ThroughputLog


def test_the_last_speed_of_each_model_is_kept(tmp_path):
    log = ThroughputLog(tmp_path / "new")
    log.record("a", generated_tokens=1000, tokens_per_s=50.0)
    log.record("b", generated_tokens=1000, tokens_per_s=7.0)
    log.record("a", generated_tokens=1000, tokens_per_s=60.0)

    assert [ThroughputLog(tmp_path / "new").tokens_per_s(m) for m in "abc"] == [60.0, 7.0, None]


def test_a_short_run_says_nothing(tmp_path):
    log = ThroughputLog(tmp_path)
    log.record("a", generated_tokens=3, tokens_per_s=50.0)

    assert log.tokens_per_s("a") is None


def test_a_damaged_file_counts_as_empty(tmp_path):
    for text in ("{", "[]", '{"a": "fast"}', '{"a": -1}'):
        (tmp_path / "throughput.json").write_text(text)

        assert ThroughputLog(tmp_path).tokens_per_s("a") is None
