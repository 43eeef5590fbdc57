"""How soon a small batch runs on `gristmill up`: from the call that creates it to its first row.

    python tests/bench/first_row.py --model smollm2-135m [--repeat 10]

A row runs when its worker has opened an Attempt at its Shard and is about to step; the process
tells so in its history.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--repeat", type=int, default=10)
    args = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-c", "from gristmill.cli import main; main()", "up"]
        command += ["--model", args.model, "--port", "0", "--data-dir", str(folder / "data")]
        history = folder / "history"
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            up = subprocess.Popen(
                command,
                stdout=out,
                stderr=err,
                env={**os.environ, "GRISTMILL_HISTORY": str(history)},
            )
        try:
            text = wait_for(folder / "out", r"^gm_\w+$")
            wait_for(folder / "err", r"The model is loaded")
            url = re.search(r"at (http://\S+)/v1\n", text)
            key = re.search(r"^gm_\w+$", text, re.MULTILINE)
            assert url and key
            client = OpenAI(base_url=f"{url[1]}/v1", api_key=key[0])
            show([measure(client, history) for _ in range(args.repeat)])
        finally:
            up.send_signal(signal.SIGTERM)
            up.wait(60)


def wait_for(path: Path, pattern: str) -> str:
    give_up_at = time.monotonic() + 300
    while not re.search(pattern, path.read_text(), re.MULTILINE):
        assert time.monotonic() < give_up_at, path.read_text()
        time.sleep(0.05)
    time.sleep(0.2)  # the rest of what is printed with it
    return path.read_text()


def measure(client: OpenAI, history: Path) -> tuple[float, float]:
    """Seconds until the call that creates a batch returns, and until its first row runs."""
    (model,) = client.models.list()
    body = {"model": model.id, "prompt": "Once upon a time", "max_tokens": 4}
    lines = [
        {"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions", "body": body}
        for i in range(3)
    ]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    file = client.files.create(file=("in.jsonl", text.encode()), purpose="batch")
    began = time.monotonic()
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    )
    created_s = time.monotonic() - began
    ended: Any = batch
    while ended.status not in ("completed", "failed"):
        time.sleep(0.05)
        ended = client.batches.retrieve(batch.id)
    assert ended.status == "completed", ended
    opened = [
        event["t"]
        for event in map(json.loads, history.read_text().splitlines())
        if event["e"] == "opened" and event["t"] > began
    ]
    return created_s, min(opened) - began


def show(found: list[tuple[float, float]]) -> None:
    for name, index in (("create returns", 0), ("first row runs", 1)):
        waits = sorted(waits[index] for waits in found)
        median = waits[len(waits) // 2]
        print(f"{name} after {median * 1e3:.0f} ms, {waits[-1] * 1e3:.0f} ms at worst")


if __name__ == "__main__":
    main()
