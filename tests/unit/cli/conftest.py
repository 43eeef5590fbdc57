"""A fake pipeline behind the command line: what `local.run` is called with, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gristmill import local
from gristmill.cli import app
from gristmill.types import Usage

SUMMARY = local.Summary(
    batch_id="batch_1",
    status="completed",
    total=3,
    completed=3,
    failed=0,
    usage=Usage(prompt_tokens=1200, completion_tokens=90, cached_tokens=300),
    cached_fraction=0.25,
    elapsed_s=4.5,
    generated_tokens=60,
    tokens_per_s=13.33,
    ttft_p50_s=0.25,
    ttft_p95_s=1.5,
    itl_p50_s=0.05,
    itl_p95_s=0.125,
    rows_resumed=0,
    tokens_resumed=0,
    output_path=Path("out.jsonl"),
    errors_path=None,
)


@dataclass
class FakePipeline:
    """Stands where `gristmill.local.run` stands."""

    summary: local.Summary = SUMMARY
    error: BaseException | None = None
    progress: list[local.Progress] = field(default_factory=list)
    configs: list[local.RunConfig] = field(default_factory=list)

    def run(
        self,
        config: local.RunConfig,
        *,
        on_progress: Callable[[local.Progress], None],
        should_stop: Callable[[], bool],
    ) -> local.Summary:
        self.configs.append(config)
        assert not should_stop()
        for progress in self.progress:
            on_progress(progress)
        if self.error is not None:
            raise self.error
        return self.summary

    def ends_with(self, **changes: object) -> None:
        self.summary = replace(self.summary, **changes)  # type: ignore[arg-type]


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakePipeline:
    fake = FakePipeline()
    monkeypatch.setattr(local, "run", fake.run)
    monkeypatch.setenv("GRISTMILL_CACHE_DIR", str(tmp_path / "cache"))
    return fake


@pytest.fixture
def gristmill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Calls the command line in an empty folder that holds `in.jsonl`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "in.jsonl").write_text("{}\n")

    def call(*args: str) -> Result:
        return CliRunner().invoke(app, list(args))

    return call
