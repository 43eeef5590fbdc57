"""Uploads at once: none is waited for without end, and no tenant has all of the slots."""

from __future__ import annotations

import select
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from unittest.mock import patch

import anyio
import pytest
from house import House

from gristmill.api.body_pace import PacedBody
from gristmill.api.failures import ApiError
from gristmill.api.upload_slots import UploadSlots

PART = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\nabc'


def begin_upload(house: House, tenant_id: str, **fields: str) -> socket.socket:
    """By hand, as no client does: its bytes come when a test says so."""
    host, port = house.service.url.removeprefix("http://").split(":")
    head = (
        f"POST /v1/files HTTP/1.1\r\nHost: {host}\r\n"
        f"Authorization: Bearer {house.key(tenant_id)}\r\n"
        "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 99999\r\n\r\n"
    )
    connection = socket.create_connection((host, int(port)), timeout=60)
    form = "".join(
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    )
    connection.sendall(head.encode() + form.encode() + PART)
    return connection


def test_an_upload_of_which_nothing_comes_any_more_is_ended(house: House) -> None:
    with (
        patch("gristmill.api.body_pace._STRETCH_S", 0.05),
        begin_upload(house, "gone") as connection,
    ):
        answer = connection.makefile("rb").read()

    assert answer.startswith(b"HTTP/1.1 408") and b"request_timeout" in answer
    assert list(house.data.store.list("t/gone/")) == []


def test_uploads_that_trickle_are_ended_and_their_tenant_has_its_slots_again(house: House) -> None:
    answers = []
    with patch("gristmill.api.body_pace._STRETCH_S", 0.2), ExitStack() as stack:
        trickling = [stack.enter_context(begin_upload(house, "drip")) for _ in range(8)]
        while trickling:
            for connection in trickling:
                with suppress(OSError):  # it is being closed
                    connection.sendall(b"y")
            answered, _, _ = select.select(trickling, [], [], 0.02)
            for connection in answered:
                trickling.remove(connection)
                answers.append(connection.recv(9999))
    file = house.upload(b"{}", tenant_id="drip")

    assert len(answers) == 8 and all(b" 408 " in answer[:20] for answer in answers)
    assert list(house.client("drip").files.list()) == [file]


@pytest.mark.parametrize(
    ("fields", "status", "reason"),
    [
        ({"purpose": "batch", "validate_for": "/v1/completions"}, 429, b"estimates are being made"),
        ({"validate_for": "/v1/completions"}, 429, b"estimates are being made"),
        ({"purpose": "fine-tune"}, 400, b"Only 'batch' is taken here"),
        ({"validate_for": "/v1/audio"}, 400, b"Name the endpoint of the batch"),
    ],
)
def test_what_the_fields_before_a_file_say_is_refused_before_the_file_is_read(
    house: House, fields: dict[str, str], status: int, reason: bytes
) -> None:
    with (
        patch("gristmill.api.file_checks._MAX_OPEN", 0),
        begin_upload(house, "early", **fields) as connection,
    ):
        answer = b""
        while reason not in answer and (piece := connection.recv(9999)):
            answer += piece

    assert answer.startswith(b"HTTP/1.1 %d" % status) and reason in answer
    assert list(house.data.store.list("t/early/")) == []


def test_a_body_is_given_up_when_it_is_too_slow_and_not_when_it_is_slow() -> None:
    """Each piece with the seconds that it takes; none is waited for longer than a minute."""

    def num_taken(*pieces: tuple[int, float]) -> int:
        now, limits = 0.0, list[float]()

        async def body() -> AsyncIterator[bytes]:
            nonlocal now
            for num_bytes, seconds in pieces:
                if seconds > limits[-1]:
                    raise TimeoutError
                now += seconds
                yield b"y" * num_bytes

        async def main() -> int:
            paced, num_bytes = PacedBody(body(), monotonic=lambda: now), 0
            with suppress(ApiError):
                while (piece := await paced.next_piece()) is not None:
                    num_bytes += len(piece)
            return num_bytes

        def limited(seconds: float) -> AbstractContextManager[None]:
            limits.append(seconds)
            return nullcontext()

        with patch("gristmill.api.body_pace.anyio.fail_after", limited):
            return anyio.run(main)

    assert num_taken(*[(20_000, 1.0)] * 100) == 2_000_000
    assert num_taken(*[(20_000, 1.0)] * 3, (20_000, 55.0), *[(20_000, 1.0)] * 99) == 2_060_000
    assert num_taken(*[(2_000, 0.9)] * 500) == 1_000_000
    assert num_taken(*[(1_000, 1.0)] * 500) == 60_000
    assert num_taken(*[(1, 59.0)] * 500) == 1
    assert num_taken((1_000_000, 1.0), *[(1, 59.0)] * 500) == 1_000_001


def test_one_tenant_has_a_part_of_the_uploads_at_once() -> None:
    async def main() -> list[str]:
        slots, entered, release = UploadSlots(of_one_tenant=2), list[str](), anyio.Event()

        async def upload(tenant_id: str) -> None:
            async with slots.slot(tenant_id):
                entered.append(tenant_id)
                await release.wait()

        async with anyio.create_task_group() as group:
            for tenant_id in ("a", "a", "a", "b"):
                group.start_soon(upload, tenant_id)
            await anyio.wait_all_tasks_blocked()
            at_once = sorted(entered)
            release.set()
        assert sorted(entered) == ["a", "a", "a", "b"]
        return at_once

    assert anyio.run(main) == ["a", "a", "b"]
