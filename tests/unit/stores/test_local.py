"""What only the local folder promises: unfinished files, a full disk, folders it may not use."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from gristmill.errors import StoreError, StoreRefused
from gristmill.stores.local import LocalStore


def test_unfinished_writes_of_a_killed_process_are_never_listed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("t/a/x", b"1")
    (tmp_path / "t/a/.tmp-0123").write_bytes(b"half")

    assert list(store.list("")) == ["t/a/x"]


def test_unfinished_writes_are_removed_once_they_are_old(tmp_path: Path) -> None:
    (tmp_path / "t/a").mkdir(parents=True)
    left = tmp_path / "t/a/.tmp-0123"
    left.write_bytes(b"half")
    written_at = left.stat().st_mtime
    young = LocalStore(tmp_path, clock=lambda: written_at + 3599)
    old = LocalStore(tmp_path, clock=lambda: written_at + 3600)

    assert young.remove_unfinished(older_than_s=3600) == 0
    assert left.exists()
    assert old.remove_unfinished(older_than_s=3600) == 1
    assert not left.exists()


def test_one_of_many_creators_wins(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    won: list[int] = []
    start = threading.Barrier(8)

    def create(n: int) -> None:
        start.wait()
        if store.create("t/x", b"by %d" % n):
            won.append(n)

    threads = [threading.Thread(target=create, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [b"by %d" % n for n in won] == [store.get("t/x")]


def test_a_full_disk_is_a_readable_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = LocalStore(tmp_path)
    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(StoreError, match="is full") as caught:
        store.put("x", b"1")
    assert caught.value.retryable
    assert list(store.list("")) == []


def test_a_disk_that_fails_while_it_is_read_is_a_readable_error(tmp_path: Path) -> None:
    memory = Path("/proc/self/mem")  # its first bytes cannot be read
    if not memory.exists():
        pytest.skip("needs a file that can be opened and not read")
    (tmp_path / "x").symlink_to(memory)
    store = LocalStore(tmp_path)

    with pytest.raises(StoreError, match="Input/output error"):
        store.get("x")
    with store.open("x") as file, pytest.raises(StoreError, match="Input/output error"):
        file.read(5)


def test_a_folder_that_is_a_file_is_refused_by_the_probe(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(StoreRefused, match="may write to"):
        LocalStore(tmp_path / "file" / "store").probe()


def test_folders_that_have_been_empty_for_long_are_removed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    store.put("t/a/x/1", b"1")
    store.put("t/b/y", b"2")
    store.delete("t/a/x/1")
    emptied_at = (tmp_path / "store/t/a/x").stat().st_mtime
    young = LocalStore(tmp_path / "store", clock=lambda: emptied_at + 3599)
    old = LocalStore(tmp_path / "store", clock=lambda: emptied_at + 3600)

    assert young.remove_unfinished(older_than_s=3600) == 0
    assert (tmp_path / "store/t/a/x").exists()
    assert old.remove_unfinished(older_than_s=3600) == 0
    assert not (tmp_path / "store/t/a/x").exists()
    assert list(store.list("")) == ["t/b/y"]
    store.put("t/a/x/1", b"1")
    assert store.get("t/a/x/1") == b"1"
