"""Files of others are those that were taken, each with its licence and where it comes from."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files

FOLDER = files("gristmill.dashboard") / "static"
OURS = {"dashboard.css", "dashboard.js", "mark.svg", "VENDORED.md"}


def test_every_file_of_others_is_the_one_that_was_taken() -> None:
    note = (FOLDER / "VENDORED.md").read_text("utf-8")
    noted = dict(re.findall(r"^\| `([\w.]+)` \|.*\| `([0-9a-f]{64})` \|$", note, re.MULTILINE))

    found = {file.name: file.read_bytes() for file in FOLDER.iterdir() if file.name not in OURS}
    licences = {name for name in found if name.endswith(".LICENSE.txt")}
    hashes = {
        name: hashlib.sha256(body).hexdigest()
        for name, body in found.items()
        if name not in licences
    }

    assert hashes == noted and len(noted) == 3
    assert {name.partition(".")[0] for name in licences} == {
        name.partition(".")[0] for name in noted
    }
