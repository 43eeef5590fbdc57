"""What `gristmill run --dry-run` costs beside bare tokenising: seconds, memory, and their ratio.

    python tests/bench/dry_run.py --model smollm2-135m

Writes a file of chat requests (200 MB, 50,000 lines), checks it in a process of its own, then
encodes the same texts with nothing but `tokenizers` in another, and prints both.
"""

from __future__ import annotations

import argparse
import json
import pkgutil
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from _memory import peak_mib

from gristmill.models import Model, find_model
from gristmill.settings import Settings

#: Texts that bare tokenising encodes at once; larger groups are no faster.
GROUP = 256

Figures = dict[str, float]
Part = Callable[[Path, str], Figures]
Show = Callable[[Figures, Figures], None]


def main() -> None:
    compare(__file__, __doc__, check_part, show, megabytes=200)


def compare(script: str, description: str, part: Part, show: Show, *, megabytes: int) -> None:
    """Measures `part` and bare tokenising on the same file, each in a process of its own."""
    parts = {"ours": part, "bare": bare_part}
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m", help="a name that find_model takes")
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--megabytes", type=int, default=megabytes)
    parser.add_argument("--part", choices=list(parts), help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        print(json.dumps(parts[args.part](args.file, args.model)))
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "in.jsonl"
        write_requests(file, num_lines=args.lines, num_bytes=args.megabytes * 10**6)
        command = [sys.executable, script, "--file", str(file), "--model", args.model, "--part"]
        said = (subprocess.check_output([*command, name]) for name in parts)
        show(*map(json.loads, said))


def show(checked: Figures, bare: Figures) -> None:
    print(f"input         {checked['bytes'] / 1e6:.0f} MB, {checked['rows']:.0f} rows")
    print(f"prompt tokens {checked['prompt_tokens']:.0f}")
    print(f"start         {checked['start_s']:.1f} s: imports, tokenizer")
    print(f"check         {checked['check_s']:.1f} s, {checked['check_cpu_s']:.1f} s of CPU")
    for name in ("encode_batch", "encode_batch_fast"):
        seconds, cpu_s = bare[f"{name}_s"], bare[f"{name}_cpu_s"]
        print(f"{name:<13} {seconds:.1f} s, {cpu_s:.1f} s of CPU")
        print(f"  check / it  {checked['check_s'] / seconds:.2f}", end="")
        print(f", in CPU {checked['check_cpu_s'] / cpu_s:.2f}")
    print(
        f"peak RSS      {checked['peak_mib']:.0f} MiB, {checked['peak_at_tenth_mib']:.0f} MiB ",
        end="",
    )
    print(f"at a tenth of the file, {checked['start_mib']:.0f} MiB before it")


def write_requests(file: Path, *, num_lines: int, num_bytes: int) -> None:
    """Chat requests of varied length, many without a system message, some of them sampled."""
    rng = random.Random(7)
    text = real_text()
    with file.open("w", encoding="utf-8") as out:
        written = 0
        for idx in range(num_lines):
            size = int((num_bytes - written) / (num_lines - idx) * rng.uniform(0.2, 1.8)) - 250
            start = rng.randrange(len(text) - size)
            messages = [{"role": "user", "content": text[start : start + size]}]
            if rng.random() < 0.5:
                messages.insert(0, {"role": "system", "content": "You explain Python to experts."})
            body = {"model": "M", "messages": messages, "max_tokens": rng.randrange(16, 512)}
            if rng.random() < 0.7:
                body["temperature"] = rng.choice([0, 0.3, 0.7])
            request = {
                "custom_id": f"row-{idx:07}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": body,
            }
            written += out.write(json.dumps(request, ensure_ascii=False) + "\n")


def real_text() -> str:
    """Prose and code that each Python brings along: its language reference, its library."""
    from pydoc_data.topics import topics

    folder = Path(json.__file__).parent.parent
    names = sorted(module.name for module in pkgutil.iter_modules([str(folder)]))
    sources = [folder / f"{name}.py" for name in names if not name.startswith("_")]
    code = [path.read_text("utf-8", "replace") for path in sources if path.is_file()]
    pieces = [*topics.values(), *code]
    random.Random(7).shuffle(pieces)
    return "\n\n".join(pieces)


def check_part(file: Path, model_name: str) -> Figures:
    started = time.perf_counter()
    from gristmill.requests.check import CheckReport, check
    from gristmill.requests.tokenise import Tokeniser

    model = find(model_name)
    size = file.stat().st_size
    at_tenth: list[float] = []

    def on_progress(report: CheckReport) -> None:
        if not at_tenth and report.input_bytes >= size / 10:
            at_tenth.append(peak_mib())

    tokeniser = Tokeniser(model)
    ready, start_mib = time.perf_counter(), peak_mib()
    cpu = time.process_time()
    with file.open("rb") as source:
        report = check(
            source,
            model=model,
            settings=Settings(),
            tokeniser=tokeniser,
            on_progress=on_progress,
        )
    return {
        "bytes": size,
        "rows": report.num_rows,
        "prompt_tokens": report.prompt_tokens,
        "start_s": ready - started,
        "check_s": time.perf_counter() - ready,
        "check_cpu_s": time.process_time() - cpu,
        "start_mib": start_mib,
        "peak_at_tenth_mib": at_tenth[0],
        "peak_mib": peak_mib(),
    }


def bare_part(file: Path, model_name: str) -> Figures:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(find(model_name).path / "tokenizer.json"))
    found = {}
    for name in ("encode_batch_fast", "encode_batch"):
        encode = getattr(tokenizer, name)
        seconds = cpu_s = 0.0
        for group in groups_of_texts(file):
            began, cpu = time.perf_counter(), time.process_time()
            encode(group, add_special_tokens=False)
            seconds += time.perf_counter() - began
            cpu_s += time.process_time() - cpu
        found |= {f"{name}_s": seconds, f"{name}_cpu_s": cpu_s}
    return found


def groups_of_texts(file: Path) -> Iterator[list[str]]:
    group: list[str] = []
    with file.open("rb") as lines:
        for line in lines:
            group += [message["content"] for message in json.loads(line)["body"]["messages"]]
            if len(group) >= GROUP:
                yield group
                group = []
    if group:
        yield group


def find(name: str) -> Model:
    def convert_gguf(gguf: Path, folder: Path) -> None:
        from gristmill_worker.models.gguf import convert

        convert(gguf, folder)

    return find_model(name, settings=Settings(), served_names=["M"], convert_gguf=convert_gguf)


if __name__ == "__main__":
    main()
