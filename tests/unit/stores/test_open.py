"""From a URL to a Store: what each form means, and what is wrong with a bad one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from aws_server import AwsServer, aws_environment

from gristmill.errors import UsageError
from gristmill.stores.open import open_store


@pytest.fixture(autouse=True)
def credentials() -> Iterator[None]:
    with aws_environment():
        yield


def test_a_path_and_a_file_url_are_the_same_folder(tmp_path: Path) -> None:
    open_store(str(tmp_path / "a b")).put("t/x", b"1")

    assert open_store(f"file://{tmp_path}/a%20b").get("t/x") == b"1"
    assert (tmp_path / "a b/t/x").read_bytes() == b"1"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "is no store"),
        ("gs://bucket", "is no store"),
        ("file://", "names no folder"),
        ("file://host/folder", "names no folder"),
        ("s3://", "names no bucket"),
        ("s3:///prefix", "names no bucket"),
        ("s3://bucket?regoin=eu-west-1", "'regoin' is no parameter"),
        ("s3://bucket?endpoint=localhost:9000", "give a server"),
        ("s3://bucket?endpoint=http://host/path", "give a server"),
        ("s3://bucket?checksums=never", "one of when_supported, when_required"),
        ("s3://bucket?addressing=both", "one of virtual, path"),
        ("s3://bucket?retries=legacy", "one of standard, adaptive"),
        ("s3://bucket?attempts=0", "a number from 1 on"),
        ("s3://bucket?timeout_s=soon", "a number from 1 on"),
        ("s3://bucket?region=not a region", "not a region"),
    ],
)
def test_a_bad_url_is_refused_with_the_way_out(url: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        open_store(url)


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError, match="AWS_ACCESS_KEY_ID") as caught:
        open_store("s3://AKIA:hidden@bucket/prefix")

    assert "hidden" not in str(caught.value)


def test_s3_without_boto3_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gristmill.aws", "gristmill.stores.s3"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "boto3", None)

    with pytest.raises(UsageError, match=r"boto3.*gristmill\[aws\]"):
        open_store("s3://bucket")


def test_a_bucket_of_aws_is_reached_in_its_region_by_its_own_host() -> None:
    link = open_store("s3://some-bucket/p?region=eu-central-1").link("t/x", 60)

    assert link is not None
    assert link.startswith("https://some-bucket.s3.eu-central-1.amazonaws.com/p/t/x?")
    assert "X-Amz-Expires=60" in link


def test_another_server_is_reached_by_path_and_can_be_named_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://minio.local:9000")

    link = open_store("s3://some-bucket").link("t/x", 60)

    assert link is not None
    assert link.startswith("http://minio.local:9000/some-bucket/t/x?")


def test_stores_of_one_bucket_see_only_what_lies_under_their_prefix(aws: AwsServer) -> None:
    bucket = aws.new_bucket()
    first, second = (open_store(aws.s3_url(bucket, name)) for name in ("a", "a/b"))
    first.put("x", b"1")
    second.put("x", b"2")
    aws.client("s3").put_object(Bucket=bucket, Key="a/not a key", Body=b"")

    assert list(first.list("")) == ["b/x", "x"]
    assert list(second.list("")) == ["x"]
    assert second.get("x") == b"2"
