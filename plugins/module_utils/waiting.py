"""How long a server may take to load its model, and what to say while it does. Pure.

A server answers ``/health`` with 503 while it loads and with 200 when it is ready. Loading reads the whole model once,
so the deadline follows from its bytes and the disk; a fixed one is too short for 245 GB from a spinning disk and keeps
the owner waiting for nothing when a small model hangs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.llamarack.core.plugins.module_utils.memory import gib

# What the slowest disk of a kind that is sold today reads in sequence, bytes per second: vendors' data sheets, rounded
# down. A measured value will replace them.
SLOWEST_READ = {
    "nvme": 1_500_000_000,
    "sata": 400_000_000,
    "virtio": 150_000_000,
    "memory": 3_000_000_000,
    "usb": 80_000_000,
    "network": 80_000_000,
}
SLOWEST_ROTATING = 120_000_000
SLOWEST_UNKNOWN = 100_000_000

# Reading is not all: tensors are repacked, buffers zeroed, a warm-up run is computed.
PATIENCE = 3
# For what does not grow with the model: the process, the graph, a busy machine.
BASE_SECONDS = 90


def mount_of(profile: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """The mount of the host profile that holds a path; empty when none does."""
    best: Mapping[str, Any] = {}
    for mount in profile.get("mounts", []):
        root = str(mount["path"]).rstrip("/") + "/"
        if path.startswith(root) and len(root) > len(str(best.get("path", ""))):
            best = mount
    return best


def read_bytes_per_second(mount: Mapping[str, Any]) -> int:
    """What the disk under a mount reads at the least."""
    if mount.get("rotational") and mount.get("transport") not in ("network", "usb"):
        return SLOWEST_ROTATING
    return SLOWEST_READ.get(str(mount.get("transport")), SLOWEST_UNKNOWN)


def deadline_seconds(model_bytes: int, mount: Mapping[str, Any]) -> int:
    """Seconds until a server that is still loading is taken for hung."""
    return BASE_SECONDS + PATIENCE * model_bytes // read_bytes_per_second(mount)


def has_died(state: Mapping[str, Any], first: Mapping[str, Any]) -> bool:
    """Whether the process ended since the wait began: it is down, or another one stands in its place.

    :param state: ``running``, ``pid`` and ``restarts``, as the service manager tells them now.
    :param first: the same, from the beginning of the wait.
    """
    if not state["running"]:
        return True
    replaced = bool(first["pid"]) and state["pid"] != first["pid"]
    return replaced or bool(state["restarts"] > first["restarts"])


def progress(name: str, resident_bytes: int, model_bytes: int, seconds: float, deadline: float) -> str:
    """One line about a server that is loading. Mapped weights count as they are touched."""
    share = min(99, 100 * resident_bytes // model_bytes) if model_bytes else 0
    return (
        f"{name} is loading: {gib(resident_bytes)} of {gib(model_bytes)} in memory ({share} %), "
        f"{seconds:.0f} s of {deadline:.0f} s at most"
    )
