"""Runs the installed command as a real process, and reads what it leaves behind."""

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

COMMAND = Path(sys.executable).with_name("gristmill")


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

    def command(self, *options: str) -> list[str]:
        call = [str(COMMAND), "run", "in.jsonl", "-o", "out.jsonl", "--model", str(self.model)]
        return [*call, "--served-model-name", "tiny", *options]

    def run(self, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self._call(self.command(*options), environment)

    def call(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Another command of `gristmill` in the same folder."""
        return self._call([str(COMMAND), *words], environment)

    def _call(
        self, command: list[str], environment: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self._environment(environment),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=240,
        )

    @contextmanager
    def started(self, *options: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
        """The command running; it is killed when a test leaves it behind."""
        process = subprocess.Popen(
            self.command(*options),
            cwd=self.folder,
            env=self._environment(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    @contextmanager
    def held(self, *options: str, segments: int = 1) -> Iterator[subprocess.Popen[str]]:
        """The command in the middle of its work: it holds still where it has stored so many
        Segments, however quick the machine is, until it gets SIGCONT or SIGKILL.
        """
        with self.started(*options, GRISTMILL_CRASH_POINT=f"stored=freeze:{segments}") as process:
            deadline = time.monotonic() + 120
            while not _is_stopped(process):
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline, "too few Segments were stored"
                time.sleep(0.02)
            yield process

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


def _is_stopped(process: subprocess.Popen[str]) -> bool:
    """Whether it holds still since a SIGSTOP. Asked once: the answer is not given again."""
    found = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG)
    return found is not None and found.si_pid == process.pid
