"""Servers that know less than S3 (checksums, conditions, pages), and what the probe finds."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from aws_server import AwsServer
from unruly_proxy import Reply, Request, Rule, UnrulyProxy, lose_reply, refuse

from gristmill.errors import StoreError, StoreRefused
from gristmill.stores.base import Store
from gristmill.stores.open import open_store
from gristmill.stores.s3 import PART_BYTES, S3Store


@pytest.fixture
def store(aws: AwsServer, bucket: str, proxy: UnrulyProxy) -> Store:
    return open_store(aws.s3_url(bucket, endpoint=proxy.url))


def has_checksum(request: Request) -> bool:
    names = [name.lower() for name in request.headers]
    return any(
        name.startswith(("x-amz-checksum-", "x-amz-trailer", "x-amz-sdk-checksum"))
        for name in names
    ) or "aws-chunked" in request.headers.get("Content-Encoding", "")


def test_B43_a_server_that_refuses_checksums_works_with_the_defaults(
    store: Store, proxy: UnrulyProxy
) -> None:
    proxy.rules = [Rule(refuse(400, "InvalidArgument", "x-amz-checksum"), has_checksum, 100)]

    store.probe()
    store.put_stream("t/x", [bytes(PART_BYTES + 1)])

    assert store.size("t/x") == PART_BYTES + 1
    written = [request.headers for request in proxy.seen if "t/x" in request.path and request.body]
    assert len([headers for headers in written if "Content-MD5" in headers]) == 2


def test_B43_the_error_names_the_setting_when_checksums_are_asked_for(
    aws: AwsServer, bucket: str, proxy: UnrulyProxy
) -> None:
    store = open_store(aws.s3_url(bucket, endpoint=proxy.url, checksums="when_supported"))
    proxy.rules = [Rule(refuse(400, "InvalidArgument", "x-amz-checksum"), has_checksum, 100)]

    with pytest.raises(StoreRefused, match="add checksums=when_required"):
        store.probe()


def test_B43_a_server_that_keeps_other_bytes_is_found_by_the_probe(
    store: Store, proxy: UnrulyProxy
) -> None:
    def keep_trailer(request: Request, forward: Callable[[], Reply]) -> Reply:
        request.body += b"\r\nx-amz-checksum-crc32:AAAAAA==\r\n"
        request.headers["Content-Length"] = str(len(request.body))
        request.headers.pop("Content-MD5")
        return forward()

    proxy.rules = [Rule(keep_trailer, fits=lambda request: request.method == "PUT")]

    with pytest.raises(StoreRefused, match=r"other bytes.*checksums=when_required"):
        store.probe()
    assert list(store.list("")) == []


def test_B43_damaged_bytes_are_refused_where_the_server_sends_checksums(
    aws: AwsServer, bucket: str, proxy: UnrulyProxy
) -> None:
    def flip(request: Request, forward: Callable[[], Reply]) -> Reply:
        reply = forward()
        reply.body = bytes([reply.body[0] ^ 1]) + reply.body[1:]
        return reply

    store = open_store(aws.s3_url(bucket, endpoint=proxy.url, checksums="when_supported"))
    store.put("t/x", b"body")
    proxy.rules = [Rule(flip)]

    with pytest.raises(StoreError, match="hecksum"):
        store.get("t/x")
    assert store.get("t/x") == b"body"


def test_a_listing_of_many_pages_is_complete_and_sorted(store: Store, proxy: UnrulyProxy) -> None:
    def page_of_three(request: Request, forward: Callable[[], Reply]) -> Reply:
        request.path += "&max-keys=3"
        return forward()

    keys = [f"t/{n:02d}" for n in range(10)]
    for key in keys:
        store.put(key, b"")
    proxy.seen.clear()
    proxy.rules = [Rule(page_of_three, times=100)]

    assert list(store.list("t/")) == keys
    assert len(proxy.seen) == 4


def test_F30_a_server_that_ignores_conditions_is_found_and_nothing_is_replaced(
    store: Store, proxy: UnrulyProxy, caplog: pytest.LogCaptureFixture
) -> None:
    def without_condition(request: Request, forward: Callable[[], Reply]) -> Reply:
        request.headers.pop("If-None-Match", None)
        return forward()

    proxy.rules = [Rule(without_condition, times=1000)]
    with caplog.at_level(logging.WARNING):
        store.probe()

    assert "create() is not atomic" in caplog.text
    assert store.create("t/x", b"one")
    assert store.create("t/x", b"one")
    assert not store.create("t/x", b"two")
    assert store.get("t/x") == b"one"


def test_it_is_the_server_that_decides_who_creates(store: Store, proxy: UnrulyProxy) -> None:
    """Which this server does not do well for several at once; Ceph and S3 do."""
    store.create("t/x", b"one")
    store.create("t/x", b"two")

    written = [request for request in proxy.seen if request.method == "PUT"]
    assert [request.headers.get("If-None-Match") for request in written] == ["*", "*"]


def test_F27_a_lost_reply_to_a_create_is_still_its_own(
    store: Store, proxy: UnrulyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda seconds: None)
    proxy.rules = [Rule(lose_reply)]

    assert store.create("t/x", b"one")
    assert [request.method for request in proxy.seen] == ["PUT", "PUT", "GET"]


def test_F28_a_conflict_is_tried_again(store: Store, proxy: UnrulyProxy) -> None:
    proxy.rules = [Rule(refuse(409, "ConditionalRequestConflict"), times=2)]

    assert store.create("t/x", b"one")
    assert store.get("t/x") == b"one"


def test_an_upload_that_is_still_young_is_left_alone(aws: AwsServer, bucket: str) -> None:
    client = aws.client("s3")
    client.create_multipart_upload(Bucket=bucket, Key="p/t/x")
    client.create_multipart_upload(Bucket=bucket, Key="elsewhere/t/x")
    begun: datetime = client.list_multipart_uploads(Bucket=bucket)["Uploads"][0]["Initiated"]

    def at(age: timedelta) -> S3Store:
        return S3Store(client, bucket, "p", clock=lambda: begun.astimezone(UTC) + age)

    assert at(timedelta(seconds=3599)).remove_unfinished(older_than_s=3600) == 0
    assert at(timedelta(seconds=3600)).remove_unfinished(older_than_s=3600) == 1
    assert [u["Key"] for u in client.list_multipart_uploads(Bucket=bucket)["Uploads"]] == [
        "elsewhere/t/x"
    ]
