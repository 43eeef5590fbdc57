"""`gristmill up` and `gristmill keys` as processes: first start, example, kill, restart, Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from forked import Forked
from house import as_file, custom_ids, make_lines
from local_run import make_model_folder
from openai import OpenAI
from pipeline import fast_folder, read_lines

NURSERY = Path(__file__).with_name("fake_up.py")


def wait_for(is_so: Callable[[], Any]) -> Any:
    give_up_at = time.monotonic() + 120
    while not (found := is_so()):
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
    return found


class Up:
    """One start of `gristmill up` in a folder."""

    def __init__(
        self, folder: Path, *, port: int = 0, pauses_after: int = 0, crash_point: str = ""
    ) -> None:
        self._folder = folder
        environ = {
            **os.environ,
            "GRISTMILL_DEVICE": "cpu",
            "GRISTMILL_CACHE_DIR": str(folder / "cache"),
            "GRISTMILL_SHARD_MAX_JOBS": "4",
            "GRISTMILL_CRASH_POINT": crash_point,
        }
        arguments = ["up", "--model", str(folder / "M"), "--port", str(port)]
        arguments += ["--data-dir", str(folder / "data"), "--flush-interval", "50ms"]
        self.process = Forked(NURSERY, arguments, environ, pauses_after=pauses_after)
        self.out, self.err = self.process.out, self.process.err

    def url(self) -> str:
        def told() -> re.Match[str] | None:
            assert self.process.poll() is None, self.err.read_text()
            return re.search(r"at (http://\S+)/v1\n", self.out.read_text())

        found: re.Match[str] = wait_for(told)
        return found[1]

    def first_key(self) -> str:
        found = wait_for(lambda: re.search(r"^gm_\w+$", self.out.read_text(), re.MULTILINE))
        return str(found[0])

    def client(self, key: str) -> OpenAI:
        return OpenAI(base_url=f"{self.url()}/v1", api_key=key, max_retries=5)

    def stop(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(120)


@contextmanager
def folder_with_model() -> Iterator[Path]:
    with fast_folder() as folder:
        make_model_folder(folder / "M")
        yield folder


def gristmill(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return Forked(NURSERY, arguments, {**os.environ, **environ}).completed(timeout=120)


def test_a_service_that_is_killed_goes_on_where_it_was_and_stops_cleanly() -> None:
    with folder_with_model() as folder:
        first = Up(folder, pauses_after=3)
        key = first.first_key()
        client = first.client(key)
        file = client.files.create(file=("in.jsonl", as_file(make_lines(40))), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        wait_for(lambda: client.batches.retrieve(batch.id).request_counts.completed >= 3)  # type: ignore[union-attr]
        assert first.stop(signal.SIGKILL) == -signal.SIGKILL

        second = Up(folder)
        client = second.client(key)
        ended = wait_for(
            lambda: (b := client.batches.retrieve(batch.id)).status == "completed" and b
        )
        lines = read_lines(client.files.content(ended.output_file_id).content)
        third = Up(folder)
        taken = third.process.wait(120)
        code = second.stop(signal.SIGINT)

        assert sorted(custom_ids(lines)) == sorted(f"row-{i}" for i in range(40))
        attempts = {line["response"]["body"]["gristmill"]["attempt"] for line in lines}
        assert len(attempts) > 1  # what the first start had finished was kept
        assert "gm_" not in second.out.read_text()
        assert taken == 2 and "Another service is running" in third.err.read_text()
        assert code == 0 and "Stopped. All work is kept" in second.err.read_text()


def test_the_example_of_the_first_start_runs_as_it_is_printed() -> None:
    with folder_with_model() as folder:
        up = Up(folder)
        up.first_key()
        text = wait_for(lambda: re.search(r"^export .*^END$", up.out.read_text(), re.M | re.S))[0]

        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        ran = subprocess.run(
            ["sh", "-c", text], capture_output=True, text=True, env={**os.environ, "PATH": path}
        )
        up.stop(signal.SIGTERM)

        (line,) = read_lines(ran.stdout.rstrip("\n").encode() + b"\n")
        assert (line["custom_id"], line["response"]["status_code"]) == ("q1", 200)


def is_refused(client: OpenAI) -> bool:
    try:
        client.models.list()
    except openai.AuthenticationError:
        return True
    return False


def test_keys_are_made_listed_and_revoked_beside_a_running_service() -> None:
    with folder_with_model() as folder:
        up = Up(folder)
        up.first_key()
        data = ("--data-dir", str(folder / "data"))

        made = gristmill("keys", "create", *data, "--tenant", "other", "--expires", "90d")
        key = made.stdout.strip()
        client = up.client(key)
        models = [model.id for model in client.models.list()]
        listed = gristmill("keys", "list", *data, "--tenant", "other").stdout
        revoked = gristmill("keys", "revoke", key, *data)
        wait_for(lambda: is_refused(client))
        up.stop(signal.SIGTERM)

        assert models == ["M"]
        assert key.split("_")[1] in listed and key.split("_")[2] not in listed
        assert revoked.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("create",), "Say which"),
        (("create", "--data-dir", "nowhere"), "no data folder"),
        (("create", "--ledger", "x.sqlite"), "GRISTMILL_KEY_PEPPER is not set"),
    ],
)
def test_keys_of_nowhere_are_refused(arguments: tuple[str, ...], words: str) -> None:
    done = gristmill("keys", *arguments)

    assert done.returncode == 2 and words in done.stderr


def test_names_and_scopes_of_keys_are_checked(tmp_path: Path) -> None:
    ledger = ("--ledger", str(tmp_path / "ledger.sqlite"))
    pepper = {"GRISTMILL_KEY_PEPPER": "0123456789abcdef"}

    for wrong, words in (
        (("create", "--scope", "all"), "is no scope"),
        (("create", "--tenant", "../x"), "no name of a tenant"),
        (("create", "--expires", "soon"), "not a duration"),
        (("revoke", "gm_x"), "no key"),
    ):
        done = gristmill("keys", *wrong, *ledger, **pepper)
        assert done.returncode == 2 and words in done.stderr, done.stderr
    short = gristmill("keys", "list", *ledger, GRISTMILL_KEY_PEPPER="short")
    assert short.returncode == 2 and "'short'" not in short.stderr
