"""The modules host_profile and storage_rank on the machine that runs the tests: a real one, whatever it is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.llamarack.core.plugins.module_utils import documents
from ansible_collections.llamarack.core.plugins.modules import host_profile, storage_rank

pytestmark = pytest.mark.skipif(not Path("/proc/self/mountinfo").exists(), reason="reads /proc")


def result_of(module: Any, capsys: pytest.CaptureFixture[str], **arguments: Any) -> dict[str, Any]:
    """Run a module and return what it says."""
    with patch_module_args(arguments), pytest.raises(SystemExit):
        module.main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_this_machine_is_profiled_and_a_second_look_changes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first = result_of(host_profile, capsys, state_dir=str(tmp_path))
    assert first["changed"]
    profile = first["ansible_facts"]["llamarack_host_profile"]
    assert profile["cpu"]["usable_cpus"]
    assert set(profile["cpu"]["usable_cpus"]) <= os.sched_getaffinity(0)
    assert profile["memory"]["usable_bytes"] > 2**28
    assert profile["numa"]["nodes"]
    assert "/" in [mount["path"] for mount in profile["mounts"]]
    written = documents.read_document(f"{tmp_path}/host_profile.json", "host_profile")
    assert written["cpu"] == profile["cpu"]
    assert not result_of(host_profile, capsys, state_dir=str(tmp_path))["changed"]


def test_its_mounts_are_ranked_and_stay_ranked_once_models_lie_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    result_of(host_profile, capsys, state_dir=str(tmp_path))
    first = result_of(storage_rank, capsys, state_dir=str(tmp_path))
    assert first["changed"]
    assert first["model_store"]["candidates"]
    assert not result_of(storage_rank, capsys, state_dir=str(tmp_path))["changed"]


def test_check_mode_writes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert result_of(host_profile, capsys, state_dir=str(state), _ansible_check_mode=True)["changed"]
    ranked = result_of(storage_rank, capsys, state_dir=str(state), _ansible_check_mode=True)
    assert (ranked["changed"], ranked["model_store"]) == (True, {})
    assert "host_profile.json is not there yet" in ranked["msg"]
    assert not state.exists()
    assert result_of(storage_rank, capsys, state_dir=str(state))["failed"]


def test_a_profile_need_not_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    result = result_of(host_profile, capsys, state_dir=str(tmp_path), write=False)
    assert not result["changed"]
    assert list(tmp_path.iterdir()) == []


def test_a_relative_place_for_models_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "absolute path" in result_of(storage_rank, capsys, state_dir=str(tmp_path), path="models")["msg"]


def test_a_host_without_a_place_for_models_is_told_why(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    mount = {"path": "/", "fstype": "ext4", "file_system": "1", "device": "", "transport": "unknown"}
    mount |= {"rotational": None, "free_bytes": 10, "writable": True, "is_directory": True}
    documents.write_document(f"{tmp_path}/host_profile.json", "host_profile", {"mounts": [mount]}, check_mode=False)
    result = result_of(storage_rank, capsys, state_dir=str(tmp_path))
    assert "No mount of this host can hold models (/: only 0 MiB are free)" in result["msg"]
