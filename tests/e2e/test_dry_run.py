"""`--dry-run` tells the truth about the run that follows, and runs nothing."""

from __future__ import annotations

import json

from gristmill_process import chat_line, read_lines

GOOD = [chat_line(f"row-{i}", "word " * (1 + i), max_tokens=3, temperature=0) for i in range(5)]


def test_what_it_counts_is_what_the_run_then_has(gristmill):
    lines = [*GOOD, chat_line("twin", "word ", max_tokens=3, temperature=0)]
    lines += [chat_line("hot", "Hello", temperature=9), chat_line("hotter", "Hi", temperature=10)]
    gristmill.write(lines)

    dry = gristmill.run("--dry-run", "--json")

    assert dry.returncode == 4, dry.stderr
    assert [path.name for path in gristmill.folder.iterdir() if "out" in path.name] == []
    report = json.loads(dry.stdout)
    assert (report["num_rows"], report["num_refused"], report["num_merged"]) == (8, 2, 1)
    assert report["max_output_tokens"] == 18
    (group,) = report["refused"]
    assert (group["param"], group["num_rows"], group["first_line"]) == ("temperature", 2, 7)

    done = gristmill.run("--quiet")

    assert done.returncode == 4, done.stderr
    usages = [row["response"]["body"]["usage"] for row in read_lines(gristmill.output)]
    assert report["prompt_tokens"] == sum(usage["prompt_tokens"] for usage in usages)
    assert len(read_lines(gristmill.errors)) == report["num_refused"]


def test_a_good_file_ends_in_0_and_has_no_estimate_before_a_first_run(gristmill):
    gristmill.write(GOOD)

    dry = gristmill.run("--dry-run", GRISTMILL_CACHE_DIR=str(gristmill.folder / "empty"))

    assert dry.returncode == 0, dry.stderr
    assert "5: 5 would run, 0 would be refused" in dry.stdout
    assert "no estimate" in dry.stdout


def test_an_invalid_file_ends_in_3_and_names_its_lines(gristmill):
    gristmill.write([*GOOD, "[1, 2]", GOOD[0]])

    dry = gristmill.run("--dry-run")

    assert (dry.returncode, dry.stdout) == (3, "")
    assert "line 6: invalid_request: " in dry.stderr
    assert "line 7: duplicate_custom_id: " in dry.stderr
    assert "Traceback" not in dry.stderr
