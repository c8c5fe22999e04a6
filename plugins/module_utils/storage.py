"""Which mounts a machine has, what lies under them, and which of them models should go to. Pure: text in, data out.

The ranking goes by kind: local NVMe, then other solid-state disks, then what cannot be told, then spinning disks, then
the network; within a kind by what is free. Where models lie already comes first among those of its kind, so that a run
next week does not ask for 245 GB again because another disk has a little more room by then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NETWORK = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "glusterfs", "lustre", "beegfs", "9p", "afs", "virtiofs")
)
IN_MEMORY = frozenset(("tmpfs", "ramfs", "devtmpfs", "hugetlbfs"))
# File systems that hold files of the owner's. Everything else (proc, cgroup, squashfs, …) is none.
DISK = frozenset(
    ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "reiserfs", "ntfs3", "exfat", "overlay")
)

# Places that are the system's own, whatever lies under them.
SYSTEM_PLACES = ("/boot", "/efi", "/snap", "/etc", "/usr", "/tmp", "/var/tmp")
# The kernel's and other programs': their mounts come and go, and nobody would think of them.
FOREIGN_PLACES = (
    "/proc",
    "/sys",
    "/dev",
    "/run",
    "/var/lib/containers",
    "/var/lib/docker",
    "/var/lib/kubelet",
    "/var/snap",
)

# The least that is worth a place among the candidates: a model of the size that this product is for needs hundreds.
WORTH_BYTES = 1024**3

# By kind, the better first.
CLASSES = ("nvme", "ssd", "unknown", "rotational", "network")
CLASS_WORDS = {
    "nvme": "local NVMe",
    "ssd": "local solid-state disk",
    "unknown": "a disk whose kind cannot be told",
    "rotational": "a spinning disk",
    "network": "over the network",
}

ROOT_STORE = "/var/lib/llamarack/models-on-root"
STORE = "llamarack/models"


@dataclass(frozen=True)
class MountPoint:
    """A line of ``/proc/self/mountinfo``: where, what, how, and the number of the device (``major:minor``)."""

    path: str
    source: str
    fstype: str
    options: tuple[str, ...]
    device_number: str
    root: str


def unescaped(text: str) -> str:
    """A path as the kernel escapes it: blanks and backslashes in octal."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def parse_mountinfo(text: str) -> list[MountPoint]:
    """The mounts, the last of those at the same place (it hides the others); lines that are none are passed over."""
    found: dict[str, MountPoint] = {}
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if not dash or len(fields) < 6 or len(rest) < 2:
            continue
        options = tuple(dict.fromkeys([*fields[5].split(","), *(rest[2].split(",") if len(rest) > 2 else [])]))
        path = unescaped(fields[4])
        found[path] = MountPoint(path, unescaped(rest[1]), rest[0], options, fields[2], unescaped(fields[3]))
    return list(found.values())


def transport_of(fstype: str, sys_path: str) -> str:
    """How a mount's device is reached.

    :param sys_path: where ``/sys/dev/block/<major:minor>`` leads, or the device under a volume that is made of others;
        empty when there is none.
    """
    if fstype in NETWORK:
        return "network"
    if fstype in IN_MEMORY:
        return "memory"
    # The nearest part of the path to the disk: a USB bridge before the SATA behind it.
    for transport, pattern in (
        ("nvme", r"/nvme\d+"),
        ("usb", r"/usb\d+"),
        ("virtio", r"/virtio\d+"),
        ("sata", r"/ata\d+"),
        ("sas", r"/(?:expander|end_device)-|/host\d+/(?:port|target)"),
    ):
        if re.search(pattern, sys_path):
            return transport
    return "unknown"


def is_under(path: str, places: Iterable[str]) -> bool:
    """Whether a path is one of some places, or below one."""
    return any(path == place or path.startswith(f"{place}/") for place in places)


def is_of_interest(mount: MountPoint) -> bool:
    """Whether a mount is one that an owner would think of: no kernel file systems, no files that are mounted singly."""
    if mount.fstype not in DISK | NETWORK | IN_MEMORY:
        return False
    return not is_under(mount.path, FOREIGN_PLACES)


def disk_class(mount: Mapping[str, Any]) -> str:
    """The kind of a mount of the host profile, for the ranking."""
    if mount["transport"] in ("nvme", "network"):
        return str(mount["transport"])
    if mount["transport"] in ("unknown", "virtio"):
        # A virtual disk says of itself that it rotates, or that it does not, as it likes.
        return "unknown"
    return {True: "rotational", False: "ssd", None: "unknown"}[mount["rotational"]]


def refusal(mount: Mapping[str, Any]) -> str:
    """Why a mount cannot hold models; nothing when it can."""
    path = str(mount["path"])
    if mount["transport"] == "memory":
        return f"{mount['fstype']} lies in memory"
    if is_under(path, SYSTEM_PLACES):
        return "a place of the system's own"
    if not mount["is_directory"]:
        return "a single file is mounted there"
    if not mount["writable"]:
        return "mounted read-only"
    if mount["free_bytes"] < WORTH_BYTES:
        return f"only {mount['free_bytes'] // 1024**2} MiB are free"
    return ""


def store_path(mount_path: str) -> str:
    """Where models go on a mount."""
    return ROOT_STORE if mount_path == "/" else f"{mount_path.rstrip('/')}/{STORE}"


def candidate(mount: Mapping[str, Any], path: str, reason: str) -> dict[str, Any]:
    """An entry of the model store's document."""
    return {
        "path": path,
        "mount": mount["path"],
        "device": mount["device"],
        "transport": mount["transport"],
        "rotational": mount["rotational"],
        "free_bytes": mount["free_bytes"],
        "reason": reason,
    }


def rank(mounts: Sequence[Mapping[str, Any]], used: Iterable[str] = ()) -> dict[str, Any]:
    """The places for models, best first, each with its reason; and the mounts that are none, with theirs.

    :param mounts: of the host profile.
    :param used: places in which models lie already.
    """
    used_paths = frozenset(used)
    rejected = []
    good: dict[str, Mapping[str, Any]] = {}
    for mount in sorted(mounts, key=lambda item: (len(str(item["path"])), str(item["path"]))):
        why = refusal(mount)
        # One file system that is mounted in several places is one place.
        twin = good.get(str(mount["file_system"]))
        if not why and twin is not None:
            why = f"the same file system as {twin['path']}"
        if why:
            rejected.append({"mount": mount["path"], "reason": why})
        else:
            good[str(mount["file_system"])] = mount

    def order(mount: Mapping[str, Any]) -> tuple[int, bool, int, str]:
        in_use = store_path(str(mount["path"])) in used_paths
        return CLASSES.index(disk_class(mount)), not in_use, -int(mount["free_bytes"]), str(mount["path"])

    candidates = [
        candidate(mount, store_path(str(mount["path"])), CLASS_WORDS[disk_class(mount)])
        for mount in sorted(good.values(), key=order)
    ]
    return {"candidates": candidates, "rejected": rejected}


def chosen_by_owner(path: str, mounts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The owner's place is the only one, whatever lies under it."""
    below = [
        mount for mount in mounts if path == mount["path"] or path.startswith(f"{str(mount['path']).rstrip('/')}/")
    ]
    mount = max(below, key=lambda item: len(str(item["path"])), default=None)
    unknown = {"path": "", "device": "", "transport": "unknown", "rotational": None, "free_bytes": 0}
    return {"candidates": [candidate(mount or unknown, path, "the owner chose it (model_store_path)")], "rejected": []}
