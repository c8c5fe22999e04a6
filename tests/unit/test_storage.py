"""Which mounts are seen, what lies under them, and where models go."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.llamarack.core.plugins.module_utils import storage
from hypothesis import given
from hypothesis import strategies as st

GIB = 1024**3

MOUNTINFO = r"""
22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro
23 22 0:22 / /proc rw,nosuid shared:2 - proc proc rw
24 22 0:23 / /tmp rw,nosuid shared:3 - tmpfs tmpfs rw,size=9000k
25 22 259:1 / /boot/efi rw,relatime shared:4 - vfat /dev/nvme0n1p1 rw
26 22 259:5 / /mnt/fast\040disk rw,noatime shared:5 - xfs /dev/nvme1n1 rw
27 22 8:1 / /srv rw,relatime shared:6 - ext4 /dev/sda1 rw
28 22 0:50 / /mnt/nas rw,relatime shared:7 - nfs4 nas:/export rw,vers=4.2
29 22 259:5 /sub /home rw,noatime shared:8 - xfs /dev/nvme1n1 rw
30 22 0:60 / /run/user/0 rw - tmpfs tmpfs rw
31 22 7:3 / /snap/core/1 ro - squashfs /dev/loop3 ro
32 22 0:70 / /var/lib/docker/overlay2/x/merged rw - overlay overlay rw
33 22 8:1 /resolv /etc/resolv.conf rw - ext4 /dev/sda1 rw
garbage
"""

# Where /sys/dev/block/<number> leads on real machines.
SYS_PATHS = {
    "nvme": "/sys/devices/pci0000:00/0000:00:03.1/0000:01:00.0/nvme/nvme0/nvme0n1/nvme0n1p2",
    "sata": "/sys/devices/pci0000:00/0000:00:17.0/ata3/host2/target2:0:0/2:0:0:0/block/sda/sda1",
    "usb": "/sys/devices/pci0000:00/0000:00:14.0/usb2/2-1/2-1:1.0/host6/target6:0:0/6:0:0:0/block/sdb",
    "virtio": "/sys/devices/pci0000:00/0000:00:05.0/virtio2/block/vda",
    "sas": "/sys/devices/pci0000:80/0000:80:01.1/host0/port-0:0/end_device-0:0/target0:0:0/0:0:0:0/block/sdc",
    "unknown": "/sys/devices/virtual/block/zram0",
}


def mount(path: str, transport: str = "nvme", free_gib: int = 500, **change: Any) -> dict[str, Any]:
    """A mount of the host profile."""
    return {
        "path": path,
        "source": f"/dev/{path}",
        "fstype": "ext4",
        "file_system": path,
        "device": "disk",
        "transport": transport,
        "rotational": False,
        "free_bytes": free_gib * GIB,
        "writable": True,
        "is_directory": True,
        **change,
    }


def best(*mounts: dict[str, Any], used: tuple[str, ...] = ()) -> list[str]:
    """The mounts of the candidates, in order."""
    return [entry["mount"] for entry in storage.rank(mounts, used)["candidates"]]


def why_not(*mounts: dict[str, Any]) -> dict[str, str]:
    """The reasons of those that were rejected."""
    return {entry["mount"]: entry["reason"] for entry in storage.rank(mounts)["rejected"]}


def test_the_mounts_that_an_owner_would_think_of_are_seen() -> None:
    seen = {item.path: item for item in storage.parse_mountinfo(MOUNTINFO) if storage.is_of_interest(item)}
    assert set(seen) == {"/", "/tmp", "/mnt/fast disk", "/srv", "/mnt/nas", "/home", "/etc/resolv.conf"}
    assert seen["/mnt/fast disk"].device_number == "259:5"
    assert "noatime" in seen["/mnt/fast disk"].options


def test_the_last_mount_at_a_place_hides_the_others() -> None:
    text = "1 0 8:1 / /srv rw - ext4 /dev/sda1 rw\n2 0 8:2 / /srv rw - xfs /dev/sdb1 rw\n"
    assert [item.source for item in storage.parse_mountinfo(text)] == ["/dev/sdb1"]


@pytest.mark.parametrize("transport", sorted(SYS_PATHS))
def test_a_disk_is_reached_as_its_place_in_sys_says(transport: str) -> None:
    assert storage.transport_of("ext4", SYS_PATHS[transport]) == transport


def test_file_systems_of_the_network_and_of_memory_need_no_device() -> None:
    assert storage.transport_of("nfs4", "") == "network"
    assert storage.transport_of("tmpfs", "") == "memory"
    assert storage.transport_of("overlay", "") == "unknown"


def test_the_fastest_kind_comes_first_whatever_is_free() -> None:
    order = best(
        mount("/nas", "network", 90000),
        mount("/spin", "sata", 9000, rotational=True),
        mount("/virtual", "virtio", 800, rotational=True),
        mount("/ssd", "sata", 700),
        mount("/small", "nvme", 300),
        mount("/large", "nvme", 400),
    )
    assert order == ["/large", "/small", "/ssd", "/virtual", "/spin", "/nas"]


def test_models_stay_where_they_lie_among_disks_of_a_kind() -> None:
    small, large = mount("/small", "nvme", 300), mount("/large", "nvme", 400)
    assert best(small, large, used=("/small/llamarack/models",)) == ["/small", "/large"]
    assert best(mount("/spin", "sata", 900, rotational=True), large, used=("/spin/llamarack/models",))[0] == "/large"


def test_what_cannot_hold_models_is_told_with_its_reason() -> None:
    reasons = why_not(
        mount("/"),
        mount("/tmp", "memory", fstype="tmpfs"),
        mount("/boot/data"),
        mount("/full", free_gib=0),
        mount("/ro", writable=False),
        mount("/mnt/file", is_directory=False),
        mount("/again", file_system="/"),
    )
    assert reasons == {
        "/tmp": "tmpfs lies in memory",
        "/boot/data": "a place of the system's own",
        "/full": "only 0 MiB are free",
        "/ro": "mounted read-only",
        "/mnt/file": "a single file is mounted there",
        "/again": "the same file system as /",
    }


def test_on_the_root_file_system_models_lie_with_the_products_own_data() -> None:
    assert storage.store_path("/") == "/var/lib/llamarack/models-on-root"
    assert storage.store_path("/mnt/nvme0") == "/mnt/nvme0/llamarack/models"


def test_the_owners_choice_is_the_only_one() -> None:
    store = storage.chosen_by_owner("/srv/models", [mount("/"), mount("/srv", "sata"), mount("/srv/modelsx")])
    assert [(entry["path"], entry["mount"]) for entry in store["candidates"]] == [("/srv/models", "/srv")]
    assert storage.chosen_by_owner("/x", [])["candidates"][0]["path"] == "/x"


MOUNTS = st.lists(
    st.builds(
        mount,
        path=st.sampled_from(["/", "/a", "/b", "/c", "/tmp", "/mnt/d"]),
        transport=st.sampled_from(["nvme", "sata", "usb", "virtio", "network", "memory", "unknown", "sas"]),
        free_gib=st.integers(0, 10000),
        rotational=st.sampled_from([True, False, None]),
        writable=st.booleans(),
        file_system=st.sampled_from(["1", "2", "3", "4"]),
    ),
    unique_by=lambda item: item["path"],
)


@given(MOUNTS)
def test_each_mount_is_either_a_place_or_has_a_reason_and_no_file_system_is_two_places(
    mounts: list[dict[str, Any]],
) -> None:
    store = storage.rank(mounts)
    names = [entry["mount"] for entry in [*store["candidates"], *store["rejected"]]]
    assert sorted(names) == sorted(item["path"] for item in mounts)
    by_path = {item["path"]: item for item in mounts}
    systems = [by_path[entry["mount"]]["file_system"] for entry in store["candidates"]]
    assert len(systems) == len(set(systems))
    assert all(by_path[entry["mount"]]["writable"] for entry in store["candidates"])
    assert all(entry["reason"] for entry in [*store["candidates"], *store["rejected"]])


@given(MOUNTS, st.randoms())
def test_the_order_of_the_mounts_does_not_matter(mounts: list[dict[str, Any]], order: Any) -> None:
    shuffled = list(mounts)
    order.shuffle(shuffled)
    assert storage.rank(shuffled) == storage.rank(mounts)


@given(st.text())
def test_no_text_breaks_the_reader(text: str) -> None:
    storage.parse_mountinfo(text)
