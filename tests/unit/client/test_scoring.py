"""A scoring by a service: its batches are paid once, however often it is interrupted."""

from __future__ import annotations

import json
import time

import pytest
from client_mill import Mill, as_bytes, result_line
from client_stage import says

from gristmill.errors import BatchInvalid
from gristmill.score import Remote


class Killed(BaseException):
    """The process ends here."""


class ScoringMill(Mill):
    """Its batches end at once, with this status."""

    status = "completed"
    kills_behind_batch = 0

    def answer(self, request):
        if request.method == "GET" and request.url.path == "/v1/batches":
            newest_first = list(reversed(self.batches.values()))
            return says({"object": "list", "data": newest_first, "has_more": False})(request)
        answered = super().answer(request)
        if request.method == "POST" and request.url.path == "/v1/batches":
            batch_id = f"batch_{len(self.batches)}"
            self.files[f"out-{batch_id}"] = as_bytes([result_line(batch_id)])
            self.batches[batch_id] |= {
                "status": self.status,
                "created_at": int(time.time()),
                "output_file_id": f"out-{batch_id}",
                "errors": {"data": [{"code": "bad", "message": "is bad", "line": 1}]},
            }
            if len(self.batches) == self.kills_behind_batch:
                raise Killed
        return answered


@pytest.fixture
def mill(stage):
    mill = ScoringMill()
    stage.answers = [mill.answer]
    return mill


@pytest.fixture
def score(stage, tmp_path):
    line = {"custom_id": "a", "method": "POST", "url": "/v1/score", "body": {"model": "M"}}
    requests = tmp_path / "requests.jsonl"
    requests.write_text(json.dumps(line) + "\n")

    def run(text=None):
        if text is not None:
            requests.write_text(text)
        found = Remote("M", stage.client()).answer(requests, tmp_path, url="/v1/score")
        return json.loads(found.answers.read_text())["custom_id"]

    return run


def test_a_submission_whose_reply_was_never_noted_is_found_and_not_made_twice(mill, score):
    mill.kills_behind_batch = 1
    with pytest.raises(Killed):
        score()

    assert [score(), score()] == ["batch_1"] * 2
    assert list(mill.batches) == ["batch_1"]


def test_what_another_scoring_submitted_is_not_taken(mill, score, tmp_path):
    score()
    note = json.loads((tmp_path / "batches.json").read_text())
    (tmp_path / "batches.json").write_text(json.dumps({**note, "batch_ids": [], "token": "other"}))

    assert score() == "batch_2"
    assert score((tmp_path / "requests.jsonl").read_text() * 2) == "batch_3"


def test_a_part_of_an_interrupted_submission_is_ended_and_all_is_submitted_again(mill, score):
    mill.kills_behind_batch = 1
    with pytest.raises(Killed):
        score()
    mill.batches["batch_1"]["metadata"]["gristmill_part"] = "1/2"

    assert score() == "batch_2"
    assert mill.cancelled == ["batch_1"]


def test_a_batch_that_failed_is_forgotten(mill, score):
    mill.status = "failed"
    with pytest.raises(BatchInvalid, match="is bad"):
        score()
    mill.status = "completed"

    assert score() == "batch_2"


def test_a_note_that_cannot_be_read_is_none(mill, score, tmp_path):
    (tmp_path / "batches.json").write_text('{"sha256": "')

    assert [score(), score()] == ["batch_1"] * 2
