"""Where a model's files go, whether they have room there, and whether what lies there is still what was verified."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.llamarack.core.plugins.module_utils.memory import gib

BLOCK_BYTES = 8 * 1024**2


class FetchError(Exception):
    """A model cannot be put in place; the message says why and what to do."""


@dataclass(frozen=True)
class Split:
    """One verified file. Size, time and inode are its stamp: while they hold, it is not read again."""

    name: str
    bytes: int
    sha256: str
    mtime_ns: int
    inode: int


@dataclass(frozen=True)
class Room:
    """A directory for models on some mount, and what is free there now."""

    path: str
    free_bytes: int


def target_directory(root: str, repository: str, revision: str, quant: str) -> Path:
    """Where a quant's splits lie once they are whole."""
    return Path(root, repository, revision, quant)


def partial_directory(target: Path) -> Path:
    """Where they lie before, on the same file system. ``whole`` in it holds those that are verified."""
    return target.with_name(f".{target.name}.partial")


def free_bytes(place: Path) -> int:
    """Bytes that are free on the file system of a place that may not be there yet."""
    there = place
    while not there.exists():
        there = there.parent
    status = os.statvfs(there)
    return status.f_bavail * status.f_frsize


def begun_bytes(target: Path) -> int:
    """Bytes that an interrupted run has brought already and that the next one goes on from."""
    return sum(path.stat().st_size for path in partial_directory(target).glob("*.part"))


def choose_room(rooms: Sequence[Room], needed_bytes: int, margin_bytes: int, what: str) -> Room:
    """The first directory whose mount has room for the bytes and leaves the margin.

    :raises FetchError: when none has, with what each has.
    """
    for room in rooms:
        if room.free_bytes >= needed_bytes + margin_bytes:
            return room
    there = ", ".join(f"{room.path} has {gib(room.free_bytes)}" for room in rooms) or "there is none"
    raise FetchError(
        f"{what} needs {gib(needed_bytes)} and {gib(margin_bytes)} to spare, and no mount has them ({there}): "
        "free space, add a disk, set model_store_path, or choose a smaller quant."
    )


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for block in iter(lambda: stream.read(BLOCK_BYTES), b""):
            digest.update(block)
    return digest.hexdigest()


def stamp(path: Path, sha256: str) -> Split:
    """The stamp of a file whose digest is known."""
    status = path.stat()
    return Split(path.name, status.st_size, sha256, status.st_mtime_ns, status.st_ino)


def damaged(directory: Path, splits: Sequence[Mapping[str, Any]], full: bool) -> list[str]:
    """The names of those files that are not (or may not be) what was verified.

    :param splits: as the model document holds them.
    :param full: compare the digests, too; otherwise size, time and inode speak for them.
    """
    wrong = []
    for split in splits:
        path = directory / str(split["name"])
        try:
            status = path.stat()
            same = (status.st_size, status.st_mtime_ns, status.st_ino) == (
                split["bytes"],
                split["mtime_ns"],
                split["inode"],
            )
            if not same or full:
                # A restored backup has other times and inodes, and the same bytes.
                same = status.st_size == split["bytes"] and sha256_of(path) == split["sha256"]
        except OSError:
            same = False
        if not same:
            wrong.append(str(split["name"]))
    return wrong


def sync_tree(directory: Path) -> None:
    """Have the kernel write a directory's entries and its files to the disk, before they get their final names."""
    for path in (*sorted(directory.iterdir()), directory):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
