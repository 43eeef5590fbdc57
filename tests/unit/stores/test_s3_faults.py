"""S3 that is slow, full of errors or not there: what is retried, and what the errors say."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aws_server import AwsServer
from ports import free_port
from unruly_proxy import Reply, Request, Rule, UnrulyProxy, cut_after, lose_reply, refuse

from gristmill.errors import KeyNotFound, StoreError, StoreRefused
from gristmill.stores.base import Store
from gristmill.stores.open import open_store
from gristmill.stores.s3 import PART_BYTES
from gristmill.stores.s3_reader import MAX_BREAKS


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits between retries, which take no time here."""
    naps: list[float] = []
    monkeypatch.setattr("botocore.endpoint.time.sleep", naps.append)
    return naps


@pytest.fixture
def store(aws: AwsServer, bucket: str, proxy: UnrulyProxy) -> Store:
    return open_store(aws.s3_url(bucket, endpoint=proxy.url))


def uploads(aws: AwsServer, bucket: str) -> list[dict[str, str]]:
    found = aws.client("s3").list_multipart_uploads(Bucket=bucket)
    return [{"Key": u["Key"], "UploadId": u["UploadId"]} for u in found.get("Uploads", [])]


def is_part(request: Request) -> bool:
    return "partNumber=2" in request.path


def test_F26_a_storm_of_503_is_waited_out(
    store: Store, proxy: UnrulyProxy, naps: list[float]
) -> None:
    store.put("x", b"body")
    calls: list[Callable[[], object]] = [
        lambda: store.put("t/x", b"body"),
        lambda: store.get("t/x"),
        lambda: store.size("t/x"),
        lambda: list(store.list("t/")),
        lambda: store.delete("t/x"),
    ]

    for call in calls:
        proxy.rules = [
            Rule(refuse(503, "SlowDown"), times=2),
            Rule(refuse(500, "InternalError"), times=2),
            Rule(lambda request, forward: None),
        ]
        call()
        assert [rule.times for rule in proxy.rules] == [0, 0, 0]

    assert len(naps) == 5 * len(calls)
    assert max(naps) <= 20
    with pytest.raises(KeyNotFound):
        store.get("t/x")


def test_a_storm_that_does_not_end_is_an_error_that_may_be_retried(
    store: Store, proxy: UnrulyProxy, naps: list[float]
) -> None:
    proxy.rules = [Rule(refuse(503, "SlowDown"), times=100)]

    with pytest.raises(StoreError, match=r"SlowDown.*overloaded") as caught:
        store.put("t/x", b"body")

    assert caught.value.retryable
    assert len(proxy.seen) == 6


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (403, "InvalidAccessKeyId", "credentials are not accepted"),
        (403, "SignatureDoesNotMatch", "credentials are not accepted"),
        (403, "AccessDenied", "policy"),
        (400, "ExpiredToken", "have expired"),
        (400, "AuthorizationHeaderMalformed", "region="),
        (501, "NotImplemented", "checksums=when_required"),
        (404, "NoSuchBucket", "Create the bucket"),
        (400, "SomethingNew", "SomethingNew: said the test"),
    ],
)
def test_an_error_that_will_come_again_is_not_retried_and_says_the_way_out(
    store: Store, proxy: UnrulyProxy, status: int, code: str, said: str
) -> None:
    proxy.rules = [Rule(refuse(status, code), times=100)]

    with pytest.raises(StoreRefused, match=said) as caught:
        store.probe()

    assert proxy.url in str(caught.value)
    assert not caught.value.retryable


def test_a_bucket_that_is_not_there_is_named(aws: AwsServer) -> None:
    with pytest.raises(StoreRefused, match="Create the bucket 'no-such-bucket'"):
        open_store(aws.s3_url("no-such-bucket")).probe()


def test_missing_credentials_name_the_variables(
    aws: AwsServer, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

    with pytest.raises(StoreRefused, match="Set AWS_ACCESS_KEY_ID"):
        open_store(aws.s3_url(bucket)).probe()


def test_F33_a_wrong_clock_is_said_and_may_be_set(store: Store, proxy: UnrulyProxy) -> None:
    proxy.rules = [Rule(refuse(403, "RequestTimeTooSkewed"), times=100)]

    with pytest.raises(StoreError, match="clock of this machine is wrong") as caught:
        store.get("t/x")

    assert caught.value.retryable


def test_F32_credentials_that_expire_are_fetched_again(
    aws: AwsServer,
    bucket: str,
    proxy: UnrulyProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script, config = tmp_path / "credentials.sh", tmp_path / "config"
    soon = (datetime.now(UTC) + timedelta(seconds=60)).isoformat()
    answer = {"Version": 1, "AccessKeyId": "KEY$n", "SecretAccessKey": "s", "Expiration": soon}
    script.write_text(
        f'echo >> "{script}.runs"; n=$(grep -c "" "{script}.runs")\n'
        f"cat <<END\n{json.dumps(answer)}\nEND\n"
    )
    config.write_text(f"[default]\ncredential_process = sh {script}\n")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    store = open_store(aws.s3_url(bucket, endpoint=proxy.url))

    for key in ("t/x", "t/y", "t/z"):
        store.put(key, b"body")

    signed_by = [request.headers["Authorization"].partition("/")[0] for request in proxy.seen]
    assert len(set(signed_by)) == 3


def test_a_server_that_does_not_answer_may_do_so_later(aws: AwsServer) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"

    with pytest.raises(StoreError, match=f"{nobody}.*does not answer") as caught:
        open_store(aws.s3_url("bucket", endpoint=nobody, attempts=1)).probe()
    assert caught.value.retryable


def test_B45_F29_a_body_that_is_cut_goes_on_where_it_broke(
    store: Store, proxy: UnrulyProxy
) -> None:
    body = os.urandom(3_000_000)
    store.put("t/x", body)
    proxy.seen.clear()
    proxy.rules = [Rule(cut_after(n)) for n in (900_000, 0, 1_000_000)]

    with store.open("t/x") as file:
        found = b"".join(iter(lambda: file.read(100_000), b""))

    assert found == body
    assert [request.headers.get("Range") for request in proxy.seen] == [
        None, "bytes=900000-", "bytes=900000-", "bytes=1900000-",
    ]  # fmt: skip


def test_B45_a_body_that_cannot_be_read_to_its_end_is_an_error(
    store: Store, proxy: UnrulyProxy
) -> None:
    store.put("t/x", b"0123456789")
    proxy.rules = [Rule(cut_after(0), times=100, fits=lambda r: r.method == "GET")]

    with pytest.raises(StoreError, match="stopped at byte 0 of 10") as caught:
        store.get("t/x")

    assert caught.value.retryable
    assert 100 - proxy.rules[0].times == MAX_BREAKS + 1


def test_a_server_that_ignores_ranges_is_refused(store: Store, proxy: UnrulyProxy) -> None:
    def without_range(request: Request, forward: Callable[[], Reply]) -> Reply:
        request.headers.pop("Range", None)
        return forward()

    store.put("t/x", b"0123456789")
    proxy.rules = [Rule(without_range, times=100)]

    with pytest.raises(StoreRefused, match="knows ranges"):
        store.get("t/x", start=5)


def test_B68_a_stream_goes_up_as_it_is_made(store: Store, proxy: UnrulyProxy) -> None:
    made, most_held = 0, 0

    def chunks() -> Iterator[bytes]:
        nonlocal made, most_held
        for _ in range(36):
            most_held = max(most_held, made - sum(len(request.body) for request in proxy.seen))
            made += 1_000_000
            yield bytes(1_000_000)

    store.put_stream("t/x", chunks())

    assert made == store.size("t/x") == 36_000_000
    assert most_held < 2 * PART_BYTES


def test_an_upload_whose_source_breaks_leaves_nothing(
    store: Store, aws: AwsServer, bucket: str
) -> None:
    def broken() -> Iterator[bytes]:
        yield bytes(PART_BYTES + 1)
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        store.put_stream("t/x", broken())

    assert uploads(aws, bucket) == []
    assert list(store.list("")) == []


def test_an_upload_whose_part_is_refused_leaves_nothing(
    store: Store, proxy: UnrulyProxy, aws: AwsServer, bucket: str
) -> None:
    proxy.rules = [Rule(refuse(403, "AccessDenied"), fits=is_part)]

    with pytest.raises(StoreRefused, match="sending part 2"):
        store.put_stream("t/x", [bytes(PART_BYTES + 1)])

    assert uploads(aws, bucket) == []


def test_F31_an_upload_that_could_not_be_aborted_is_found_by_the_sweep(
    store: Store, proxy: UnrulyProxy, aws: AwsServer, bucket: str
) -> None:
    proxy.rules = [
        Rule(refuse(403, "AccessDenied"), fits=is_part),
        Rule(refuse(403, "AccessDenied"), fits=lambda request: request.method == "DELETE"),
    ]
    with pytest.raises(StoreRefused, match="sending part 2"):
        store.put_stream("t/x", [bytes(PART_BYTES + 1)])
    assert len(uploads(aws, bucket)) == 1

    assert store.remove_unfinished(older_than_s=0) == 1

    assert uploads(aws, bucket) == []
    assert store.remove_unfinished(older_than_s=0) == 0


def test_a_lost_reply_to_the_end_of_an_upload_is_no_error(
    store: Store, proxy: UnrulyProxy, naps: list[float]
) -> None:
    proxy.rules = [Rule(lose_reply, fits=lambda r: r.method == "POST" and "uploadId=" in r.path)]

    assert store.put_stream("t/x", [bytes(PART_BYTES + 1)]) == PART_BYTES + 1

    assert proxy.rules[0].times == 0
    assert store.size("t/x") == PART_BYTES + 1
