"""Where a model goes, and when what lies there is trusted."""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict
from pathlib import Path

import pytest
from ansible_collections.llamarack.core.plugins.module_utils import fetch
from hypothesis import given
from hypothesis import strategies as st

GIB = 1024**3


def lay(directory: Path, name: str, content: bytes) -> dict[str, object]:
    """A verified file, and its entry in the model document."""
    path = directory / name
    path.write_bytes(content)
    return asdict(fetch.stamp(path, hashlib.sha256(content).hexdigest()))


def test_the_first_mount_with_room_is_taken_and_the_margin_kept() -> None:
    rooms = [fetch.Room("/a", 9 * GIB), fetch.Room("/b", 12 * GIB), fetch.Room("/c", 99 * GIB)]
    assert fetch.choose_room(rooms, 8 * GIB, 1 * GIB, "x").path == "/a"
    assert fetch.choose_room(rooms, 8 * GIB, 2 * GIB, "x").path == "/b"


def test_a_model_larger_than_every_mount_is_refused_with_what_each_has() -> None:
    with pytest.raises(fetch.FetchError) as refusal:
        fetch.choose_room([fetch.Room("/a", 9 * GIB)], 245 * GIB, 2 * GIB, "UD-TQ1_0 of x/y")
    message = str(refusal.value)
    assert "UD-TQ1_0 of x/y needs 245.0 GiB" in message
    assert "/a has 9.00 GiB" in message
    assert "choose a smaller quant" in message
    with pytest.raises(fetch.FetchError, match="there is none"):
        fetch.choose_room([], 1, 0, "x")


@given(st.lists(st.integers(0, 2**45), max_size=6), st.integers(0, 2**44), st.integers(0, 2**40))
def test_no_mount_is_ever_filled_beyond_its_margin(free: list[int], needed: int, margin: int) -> None:
    rooms = [fetch.Room(f"/{number}", size) for number, size in enumerate(free)]
    try:
        room = fetch.choose_room(rooms, needed, margin, "x")
    except fetch.FetchError:
        assert all(size < needed + margin for size in free)
        return
    assert room.free_bytes - needed >= margin


def test_what_is_as_it_was_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split = lay(tmp_path, "a.gguf", b"weights")
    monkeypatch.setattr(fetch, "sha256_of", lambda _path: pytest.fail("it was read"))
    assert fetch.damaged(tmp_path, [split], full=False) == []


def test_a_restored_backup_with_another_time_is_read_once_and_trusted(tmp_path: Path) -> None:
    split = lay(tmp_path, "a.gguf", b"weights")
    os.utime(tmp_path / "a.gguf", (1, 1))
    assert fetch.damaged(tmp_path, [split], full=False) == []


def test_what_changed_or_went_is_named(tmp_path: Path) -> None:
    splits = [lay(tmp_path, name, b"weights") for name in ("a.gguf", "b.gguf", "c.gguf", "d.gguf")]
    (tmp_path / "b.gguf").write_bytes(b"weighty")
    (tmp_path / "c.gguf").write_bytes(b"short")
    (tmp_path / "d.gguf").unlink()
    assert fetch.damaged(tmp_path, splits, full=False) == ["b.gguf", "c.gguf", "d.gguf"]


def test_a_flipped_bit_behind_the_same_time_is_found_by_a_full_look_alone(tmp_path: Path) -> None:
    split = lay(tmp_path, "a.gguf", b"weights")
    before = (tmp_path / "a.gguf").stat()
    with (tmp_path / "a.gguf").open("r+b") as stream:
        stream.write(b"W")
    os.utime(tmp_path / "a.gguf", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert fetch.damaged(tmp_path, [split], full=False) == []
    assert fetch.damaged(tmp_path, [split], full=True) == ["a.gguf"]


def test_what_a_killed_run_brought_counts(tmp_path: Path) -> None:
    target = fetch.target_directory(str(tmp_path), "owner/name", "0123", "Q8_0")
    assert target == tmp_path / "owner/name/0123/Q8_0"
    assert fetch.begun_bytes(target) == 0
    partial = fetch.partial_directory(target)
    assert partial.parent == target.parent
    assert partial.name.startswith(".")
    partial.mkdir(parents=True)
    (partial / "a.gguf.part").write_bytes(b"x" * 1000)
    assert fetch.begun_bytes(target) == 1000
    assert fetch.free_bytes(target / "not/there/yet") > 0
