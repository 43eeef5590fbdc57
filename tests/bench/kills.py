"""`kill -9` at random moments of a real run, started again each time: what is lost, what differs.

Usage: kills.py [--kills 10] [--flush-interval 2s]. Prints, for each kill, the age of the newest
Segment (the decoding that was lost) and at the end how the answers compare with an undisturbed run.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from exactness import make_requests

#: What may differ between two runs: creation times, the receipt, and in the usage how much of the
#: prompt was found in the prefix cache, which tells what was computed.
_MAY_DIFFER = ("created", "gristmill")


def command(folder: Path, source: Path, flush_interval: str) -> list[str]:
    gristmill = str(Path(sys.executable).with_name("gristmill"))
    output = str(folder / "out.jsonl")
    options = ["--model", "smollm2-135m", "--flush-interval", flush_interval]
    return [gristmill, "run", str(source), "-o", output, *options, "--json", "--no-progress"]


def answers(folder: Path) -> list[Any]:
    lines = [json.loads(line) for line in (folder / "out.jsonl").open()]
    for line in lines:
        for name in _MAY_DIFFER:
            line["response"]["body"].pop(name)
        line["response"]["body"]["usage"].pop("prompt_tokens_details")
    return lines


def newest_segment(folder: Path) -> float | None:
    """When the newest Segment of a worker was stored, in seconds of the epoch."""
    found = (folder / "out.jsonl.work" / "store").glob("t/*/b/*/*/segments/*/*/*")
    times = [path.stat().st_mtime for path in found if path.parent.name != "ingest"]
    return max(times, default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--flush-interval", default="2s")
    arguments = parser.parse_args()
    rng = random.Random(7)
    with tempfile.TemporaryDirectory() as name:
        calm, stormy = Path(name) / "calm", Path(name) / "stormy"
        calm.mkdir(), stormy.mkdir()
        source = Path(name) / "in.jsonl"
        lines = make_requests(arguments.rows)
        source.write_text("".join(json.dumps(line) + "\n" for line in lines))
        begun = time.perf_counter()
        done = subprocess.run(
            command(calm, source, arguments.flush_interval), check=True, capture_output=True
        )
        undisturbed_s = time.perf_counter() - begun
        undisturbed = json.loads(done.stdout)
        print(
            f"undisturbed: {undisturbed['generated_tokens']} tokens, {undisturbed_s:.0f} s in all"
        )
        for n in range(arguments.kills):
            process = subprocess.Popen(
                command(stormy, source, arguments.flush_interval),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            # One in three falls before or while the model is loaded, the others while it answers.
            began, before = time.time(), newest_segment(stormy)
            while n % 3 and process.poll() is None and newest_segment(stormy) == before:
                time.sleep(0.05)
            try:
                process.wait(rng.uniform(0.0, 5.0))
                print(f"  the run ended before kill {n + 1}")
                break
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            stored, now = newest_segment(stormy), time.time()
            lost = (
                "no Segment yet" if stored is None else f"newest Segment {now - stored:.1f} s old"
            )
            fresh = "" if stored == before else " (of this start)"
            print(f"  kill {n + 1}, {now - began:.1f} s after the start; {lost}{fresh}")
        done = subprocess.run(
            command(stormy, source, arguments.flush_interval), check=True, capture_output=True
        )
        last = json.loads(done.stdout)
        print(f"last start: {last['tokens_resumed']} tokens resumed,", end=" ")
        print(f"{last['generated_tokens']} decoded")
        pairs = zip(answers(calm), answers(stormy), strict=True)
        differ = [one["custom_id"] for one, other in pairs if one != other]
        print(f"answers that differ from the undisturbed run: {len(differ)} {differ[:10]}")


if __name__ == "__main__":
    main()
