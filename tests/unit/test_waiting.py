"""How long a server may load, and when it is taken for dead."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.llamarack.core.plugins.module_utils import waiting
from hypothesis import given
from hypothesis import strategies as st

GB = 1_000_000_000
MOUNTS = {
    "mounts": [
        {"path": "/", "transport": "sata", "rotational": True},
        {"path": "/mnt/nvme0", "transport": "nvme", "rotational": False},
        {"path": "/mnt/nvme", "transport": "nvme", "rotational": False},
    ]
}
UP: dict[str, Any] = {"running": True, "pid": 10, "restarts": 0}


def test_a_path_lies_on_the_longest_mount_above_it_and_not_on_one_with_a_like_name() -> None:
    assert waiting.mount_of(MOUNTS, "/mnt/nvme0/llamarack/models/x")["path"] == "/mnt/nvme0"
    assert waiting.mount_of(MOUNTS, "/mnt/nvme1/x")["path"] == "/"
    assert waiting.mount_of({}, "/x") == {}


def test_k2_from_a_spinning_disk_gets_hours_and_from_nvme_minutes() -> None:
    spinning = waiting.deadline_seconds(245 * GB, MOUNTS["mounts"][0])
    nvme = waiting.deadline_seconds(245 * GB, MOUNTS["mounts"][1])
    assert 3600 < spinning < 3 * 3600
    assert 300 < nvme < 900


@given(smaller=st.integers(0, 2**40), more=st.integers(0, 2**40), transport=st.sampled_from(["nvme", "sata", "", "x"]))
def test_more_bytes_never_get_less_time(smaller: int, more: int, transport: str) -> None:
    mount = {"transport": transport}
    assert waiting.deadline_seconds(smaller, mount) >= waiting.BASE_SECONDS
    assert waiting.deadline_seconds(smaller + more, mount) >= waiting.deadline_seconds(smaller, mount)


@pytest.mark.parametrize(
    ("state", "died"),
    [
        (UP, False),
        ({**UP, "running": False}, True),
        ({**UP, "pid": 11}, True),
        ({**UP, "restarts": 1}, True),
    ],
)
def test_a_process_that_was_replaced_has_died(state: dict[str, Any], died: bool) -> None:
    assert waiting.has_died(state, UP) is died


def test_one_that_has_only_just_been_started_has_not() -> None:
    assert not waiting.has_died(UP, {**UP, "pid": 0})


def test_progress_never_says_done() -> None:
    line = waiting.progress("main", 300 * GB, 245 * GB, 12.3, 400)
    assert "99 %" in line
    assert "12 s of 400 s" in line
    assert waiting.progress("main", 0, 0, 0, 90)
