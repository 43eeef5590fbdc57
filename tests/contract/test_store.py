"""What every Store promises, whatever is behind it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import KeyNotFound, StoreError
from gristmill.stores.base import Store, check_key
from gristmill.stores.local import LocalStore

BACKENDS = {"local": LocalStore}


@pytest.fixture(params=BACKENDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return BACKENDS[request.param](tmp_path / "store")


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


@pytest.mark.parametrize(
    "key", ["", "/etc/x", "../x", "t/../x", "t//x", "t/x/", "t/.hidden", "t/a b", "t/é", "t\0x"]
)
def test_a_key_that_leads_elsewhere_is_refused(store: Store, key: str) -> None:
    with pytest.raises(StoreError):
        store.put(key, b"x")
    with pytest.raises(StoreError):
        store.get(key)
    with pytest.raises(StoreError):
        store.delete(key)


@given(st.text(alphabet="./ab\\\0", max_size=8))
def test_no_accepted_key_leaves_the_folder(key: str) -> None:
    try:
        check_key(key)
    except StoreError:
        return
    assert os.path.normpath(f"/store/{key}") == f"/store/{key}"


def test_unfinished_writes_of_a_killed_process_are_never_listed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("t/a/x", b"1")
    (tmp_path / "t/a/.tmp-0123").write_bytes(b"half")

    assert list(store.list("")) == ["t/a/x"]


def test_a_full_disk_is_a_readable_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = LocalStore(tmp_path)
    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(StoreError, match="is full") as caught:
        store.put("x", b"1")
    assert caught.value.retryable
    assert list(store.list("")) == []
