"""The list of faults in tests/chaos/README.md is true: each has a test that exists, or a reason."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
LIST = (TESTS / "chaos" / "README.md").read_text("utf-8")


def test_each_of_the_forty_faults_has_a_test_that_exists_or_a_reason() -> None:
    rows = dict(re.findall(r"^\| (\d+) \| [^|]+ \| ([^|]+) \|$", LIST, re.MULTILINE))
    source = "\n".join(path.read_text("utf-8") for path in TESTS.rglob("test_*.py"))
    existing = set(re.findall(r"def (test_\w+)", source))

    assert list(rows) == [str(number) for number in range(1, 41)]
    named = {name for row in rows.values() for name in re.findall(r"`(test_\w+)`", row)}
    assert named - existing == set()
    without = [number for number, row in rows.items() if "`test_" not in row]
    assert without == ["37", "38", "39"], "faults that have only a reason"
