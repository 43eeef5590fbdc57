"""What every Store promises, whatever is behind it."""

from __future__ import annotations

import hashlib
import itertools
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import KeyNotFound, StoreError, StoreRefused
from gristmill.stores.base import MAX_LINK_S, Store, check_key
from gristmill.stores.open import open_store


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return open_store(str(tmp_path / "store"))
    aws = request.getfixturevalue("aws")
    return open_store(aws.s3_url(aws.new_bucket()))


def test_what_was_put_can_be_read_and_streamed(store: Store) -> None:
    store.put("t/a/x", b"one")
    size = store.put_stream("t/a/y", iter([b"on", b"", b"e more"]))

    assert store.get("t/a/x") == b"one"
    assert size == 8
    with store.open("t/a/y") as file:
        assert file.read(3) == b"one"
        assert file.read() == b" more"


def test_an_object_that_is_not_there_is_key_not_found(store: Store) -> None:
    store.put("t/a/x", b"")

    for key in ("t/b", "t/a", "t/a/x/y"):
        with pytest.raises(KeyNotFound):
            store.get(key)
        with pytest.raises(KeyNotFound):
            store.open(key)
        with pytest.raises(KeyNotFound):
            store.size(key)
        with pytest.raises(KeyNotFound):
            store.get(key, start=5, num_bytes=0)


def test_a_range_is_what_lies_in_it_and_nothing_beyond_the_end(store: Store) -> None:
    store.put("x", b"0123456789")
    store.put("empty", b"")

    assert store.get("x", start=3, num_bytes=4) == b"3456"
    assert store.get("x", start=3) == b"3456789"
    assert store.get("x", num_bytes=2) == b"01"
    assert store.get("x", start=8, num_bytes=100) == b"89"
    assert store.get("x", start=10, num_bytes=5) == store.get("x", start=99) == b""
    assert store.get("x", start=2, num_bytes=0) == b""
    assert store.get("empty") == store.get("empty", num_bytes=5) == b""
    with store.open("x", start=7) as file:
        assert file.read() == b"789"
    with store.open("x", start=11) as file:
        assert file.read() == b""
    for start, num_bytes in ((-1, None), (0, -1)):
        with pytest.raises(StoreRefused, match="no range"):
            store.get("x", start=start, num_bytes=num_bytes)


def test_size_is_in_bytes(store: Store) -> None:
    store.put("t/a/x", "é".encode())

    assert store.size("t/a/x") == 2


def test_B43_a_stream_of_many_parts_is_stored_byte_for_byte(store: Store) -> None:
    block = os.urandom(1_000_003)
    sent = hashlib.sha256()

    def chunks() -> Iterator[bytes]:
        for _ in range(18):
            sent.update(block)
            yield block

    size = store.put_stream("t/a/x", chunks())

    found = hashlib.sha256()
    with store.open("t/a/x") as file:
        while piece := file.read(300_000):
            found.update(piece)
    assert found.digest() == sent.digest()
    assert size == store.size("t/a/x") == 18 * len(block)
    assert store.get("t/a/x", start=17 * len(block) - 1, num_bytes=3) == block[-1:] + block[:2]


def test_a_stream_of_nothing_is_an_empty_object(store: Store) -> None:
    assert store.put_stream("x", []) == 0
    assert store.get("x") == b""


def test_create_never_replaces_other_bytes(store: Store) -> None:
    assert store.create("t/x", b"one")
    assert store.create("t/x", b"one")  # a repeated call, after a reply that was lost
    assert not store.create("t/x", b"two")

    assert store.get("t/x") == b"one"
    assert list(store.list("")) == ["t/x"]


def test_a_link_can_be_read_by_anybody_where_there_are_links(store: Store) -> None:
    store.put("t/x", b"body")

    link = store.link("t/x", expires_s=60)

    if link is not None:
        with urllib.request.urlopen(link) as reply:
            assert reply.read() == b"body"
        with pytest.raises(StoreRefused, match="lasts from"):
            store.link("t/x", MAX_LINK_S + 1)


def test_the_probe_passes_and_leaves_nothing(store: Store) -> None:
    store.probe()

    assert list(store.list("")) == []
    assert store.remove_unfinished(older_than_s=0) == 0


def test_list_gives_the_keys_below_a_prefix_sorted(store: Store) -> None:
    keys = ["t/a/b/1", "t/a/b/10", "t/a/b/2", "t/a/b.c", "t/a/bc/1", "t/b/1"]
    for key in keys:
        store.put(key, b"")

    assert list(store.list("")) == sorted(keys)
    assert list(store.list("t/a/b/")) == ["t/a/b/1", "t/a/b/10", "t/a/b/2"]
    assert list(store.list("t/a/b/1")) == ["t/a/b/1", "t/a/b/10"]
    assert list(store.list("t/a/b")) == sorted(keys[:5])
    assert list(store.list("t/nowhere/")) == []


def test_delete_is_idempotent(store: Store) -> None:
    store.put("t/a", b"x")

    store.delete("t/a")
    store.delete("t/a")

    assert list(store.list("")) == []


def test_a_stream_that_breaks_leaves_nothing(store: Store) -> None:
    def broken() -> Iterator[bytes]:
        yield b"half"
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError):
        store.put_stream("t/a/x", broken())

    assert list(store.list("")) == []
    with pytest.raises(KeyNotFound):
        store.get("t/a/x")


BAD_KEYS = ["", "/etc/x", "../x", "t/../x", "t//x", "t/x/", "t/.hidden", "t/a b", "t/é", "t\0x"]


def test_a_key_that_leads_elsewhere_is_refused(store: Store) -> None:
    for key, call in itertools.product(
        BAD_KEYS,
        [
            store.get,
            store.open,
            store.size,
            store.delete,
            lambda key: store.put(key, b"x"),
            lambda key: store.put_stream(key, [b"x"]),
            lambda key: store.create(key, b"x"),
            lambda key: store.link(key, 60),
        ],
    ):
        with pytest.raises(StoreRefused, match="is not a key"):
            call(key)
    with pytest.raises(StoreRefused, match="is not a key"):
        store.list("../x")


@given(st.text(alphabet="./ab\\\0", max_size=8))
def test_no_accepted_key_leaves_the_folder(key: str) -> None:
    try:
        check_key(key)
    except StoreError:
        return
    assert os.path.normpath(f"/store/{key}") == f"/store/{key}"
