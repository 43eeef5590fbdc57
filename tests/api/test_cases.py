"""What is left of the cases of areas 6 and 7: files that appear whole, downloads that break off."""

from __future__ import annotations

import urllib.request
from unittest.mock import patch

import openai
import pytest
from house import ALL, House, as_file, custom_ids, make_lines
from local_run import make_line
from small_server import QuietHandler, served

from gristmill.api.access import DEFAULT_SCOPES, Scope
from gristmill.ledger.files import MAX_UPLOAD_S


def test_B42_ids_of_result_files_appear_when_the_files_can_be_read_in_full(house: House) -> None:
    client = house.client()
    batch = house.create([*make_lines(9), make_line("bad", best_of=3)])
    looks = 0
    while batch.status != "completed":
        looks += 1
        assert batch.output_file_id is None and batch.error_file_id is None
        batch = client.batches.retrieve(batch.id)

    assert looks and custom_ids(house.lines(batch.output_file_id)) == [f"row-{i}" for i in range(9)]
    assert custom_ids(house.lines(batch.error_file_id)) == ["bad"]


def test_B45_a_download_that_breaks_off_is_an_error_and_goes_on_where_it_broke(
    house: House,
) -> None:
    body = as_file(make_lines(1000))
    file = house.upload(body)
    path, cut_at = f"/v1/files/{file.id}/content", len(body) * 3 // 10

    class Handler(QuietHandler):
        """Gives on all of the head and three tenths of the body."""

        def do_GET(self) -> None:
            headers = {"authorization": self.headers["authorization"]}
            request = urllib.request.Request(house.service.url + self.path, headers=headers)
            with urllib.request.urlopen(request) as answer:
                self.send_response(answer.status)
                self.send_header("content-length", answer.headers["content-length"])
                self.end_headers()
                self.wfile.write(answer.read(cut_at))
            self.close_connection = True

    with served(Handler) as url:
        cut = openai.OpenAI(base_url=f"{url}/v1", api_key=house.key(), max_retries=0)
        received = b""
        with (
            pytest.raises(Exception, match=r"(?i)connection|peer|incomplete"),
            cut.files.with_streaming_response.content(file.id) as answer,
        ):
            for piece in answer.iter_bytes(1000):
                received += piece
        with pytest.raises(Exception, match=r"(?i)connection|peer|incomplete"):
            cut.files.content(file.id).read()
    with house.http() as http:
        rest = http.get(path, headers={"range": f"bytes={len(received)}-"})

    assert 0 < len(received) <= cut_at
    assert rest.status_code == 206 and received + rest.content == body


def test_B50_what_an_admin_cancels_stays_its_owners(house: House) -> None:
    admin = house.client(api_key=house.key("acme", [Scope.ADMIN]))
    owner = house.client(api_key=house.key("acme", DEFAULT_SCOPES))
    house.pause_midway()
    batch = house.create(make_lines(24))
    house.wait(batch, lambda b: b.request_counts and b.request_counts.completed)
    admin.batches.cancel(batch.id)
    ended = house.wait(batch)
    house.engine.resume()

    assert ended.status == "cancelled" and Scope.ADMIN in ALL
    for file_id in (ended.output_file_id, ended.error_file_id):
        assert owner.files.content(file_id or "").content
    with pytest.raises(openai.NotFoundError):
        house.client("rival").files.content(ended.output_file_id or "")


def test_an_upload_whose_process_dies_at_its_end_is_removed_after_a_day(house: House) -> None:
    folder = "t/acme/files/"
    before = set(house.data.store.list(folder))
    dies = patch("gristmill.api.files.files.complete_upload", side_effect=RuntimeError("died"))

    with dies, pytest.raises(openai.InternalServerError):
        house.upload(make_lines(1))
    (left,) = set(house.data.store.list(folder)) - before
    listed = [file.id for file in house.client().files.list()]
    house.clock.ahead_s += MAX_UPLOAD_S + 1
    try:
        house.wait_for(lambda: left not in set(house.data.store.list(folder)))
    finally:
        house.clock.ahead_s -= MAX_UPLOAD_S + 1

    assert left.removeprefix(folder) not in listed
