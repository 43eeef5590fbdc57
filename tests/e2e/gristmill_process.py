"""Runs `gristmill` as a process of its own, and reads what it leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forked import Forked

COMMAND = Path(sys.executable).with_name("gristmill")
_NURSERY = Path(__file__).with_name("engine_nursery.py")


def chat_line(custom_id: str, content: str, **parameters: object) -> dict[str, Any]:
    """One line of an input file. The model is named `tiny`."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": content}], **parameters}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def answers_of(path: Path) -> list[tuple[str, object, object]]:
    """What must not depend on interruptions: without ids, times and what came from the cache."""
    bodies = [(row["custom_id"], row["response"]["body"]) for row in read_lines(path)]
    for _, body in bodies:
        del body["usage"]["prompt_tokens_details"]["cached_tokens"]
    return [(custom_id, body["choices"], body["usage"]) for custom_id, body in bodies]


@dataclass
class Gristmill:
    """Starts `gristmill run in.jsonl -o out.jsonl` in a folder of its own."""

    folder: Path
    model: Path

    def write(self, lines: Sequence[dict[str, Any] | str]) -> None:
        texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
        (self.folder / "in.jsonl").write_text("".join(f"{text}\n" for text in texts))

    def run(self, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.call(*self._run(*options), **environment)

    def call(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Another command of `gristmill` in the same folder."""
        return self._begin(words, environment).completed(timeout=240)

    def run_installed(self, *options: str) -> subprocess.CompletedProcess[str]:
        """The same, by the command that is installed."""
        return subprocess.run(
            [str(COMMAND), *self._run(*options)],
            cwd=self.folder,
            env=self._environment({}),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=240,
        )

    @contextmanager
    def held(self, *options: str, segments: int = 1) -> Iterator[Forked]:
        """The command in the middle of its work: it holds still where it has stored so many
        Segments, however quick the machine is, until it gets SIGCONT or SIGKILL.
        """
        environment = {"GRISTMILL_CRASH_POINT": f"stored=freeze:{segments}"}
        process = self._begin(self._run(*options), environment)
        try:
            deadline = time.monotonic() + 120
            while not process.is_stopped():
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline, "too few Segments were stored"
                time.sleep(0.02)
            yield process
        finally:
            process.kill()
            process.wait()

    def _begin(self, words: Sequence[str], environment: dict[str, str]) -> Forked:
        return Forked(_NURSERY, words, self._environment(environment), cwd=self.folder)

    def _run(self, *options: str) -> list[str]:
        call = ["run", "in.jsonl", "-o", "out.jsonl", "--model", str(self.model)]
        return [*call, "--served-model-name", "tiny", *options]

    @property
    def output(self) -> Path:
        return self.folder / "out.jsonl"

    @property
    def errors(self) -> Path:
        return self.folder / "out.errors.jsonl"

    def _environment(self, extra: dict[str, str]) -> dict[str, str]:
        # One cache for all, beside the model: what is compiled into it takes its time.
        cache_dir = self.model.with_name("cache")
        own = {"GRISTMILL_CACHE_DIR": str(cache_dir), "GRISTMILL_NUM_THREADS": "1"}
        inherited = {k: v for k, v in os.environ.items() if k[:9] != "GRISTMILL"}
        return {**inherited, **own, **extra}
