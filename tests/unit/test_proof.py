"""When a build is taken for what it should be, and when not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llamarack.core.plugins.module_utils import gguf, proof

COMMIT = "0c1e57098bba43ac29e6e3b677cdceebdd22334f"
RTX = {"vendor": "NVIDIA", "name": "NVIDIA GeForce RTX 4090"}
RADEON = {"vendor": "AMD", "name": "Radeon RX 7900 XTX"}
LISTED = ["CUDA0: NVIDIA GeForce RTX 4090 (24091 MiB, 23690 MiB free)"]


@pytest.mark.parametrize(
    "output",
    [
        "llama.cpp 0.5.0 (build 11311, commit 0c1e570)\nbuilt with GNU 12.2.0",
        "version: 11311 (0c1e57098)\nbuilt with cc",
    ],
)
def test_both_spellings_of_the_version_are_understood(output: str) -> None:
    assert proof.version_problem(output, 11311, COMMIT) is None
    assert "but 11312" in str(proof.version_problem(output, 11312, COMMIT))
    assert proof.version_problem(output, 11311, "1" * 40)


def test_a_program_that_names_no_version_proves_nothing() -> None:
    assert proof.version_problem("Segmentation fault", 11311, COMMIT)


def test_devices_are_read_from_the_list_and_from_nowhere_else() -> None:
    listed = "load_backend: x\nAvailable devices:\n  CUDA0: NVIDIA GeForce RTX 4090 (24091 MiB, 23690 MiB free)\n"
    assert proof.listed_devices(listed) == ["CUDA0: NVIDIA GeForce RTX 4090 (24091 MiB, 23690 MiB free)"]
    assert proof.listed_devices("Available devices:\n  (none)\n") == []
    assert proof.listed_devices("error while loading shared libraries") is None


def test_libraries_that_are_not_found_are_named_once() -> None:
    ldd = "\tlibgomp.so.1 => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x0)\n\tlibgomp.so.1 => not found\n"
    assert proof.unresolved_libraries(ldd) == ["libgomp.so.1"]


@pytest.mark.parametrize(
    ("listed", "backends", "gpus", "said"),
    [
        (LISTED, ["cuda"], [RTX], None),
        (LISTED, ["cuda"], [RTX, RTX], "has 2 GPUs for cuda"),
        ([], ["cuda"], [RTX], "lists no device"),
        ([], ["cuda"], [], None),
        ([], ["cpu"], [RTX], None),
        (LISTED, ["cuda", "hip"], [RTX, RADEON], "1 GPU for hip (Radeon RX 7900 XTX), but llama-server lists CUDA0"),
        (["ROCm0: AMD Radeon RX 7900 XTX (24560 MiB, 24500 MiB free)"], ["hip"], [RADEON], None),
        (["RPC0: x", "MTL0: Apple M3 Ultra"], ["metal"], [{"vendor": "Apple", "name": "Apple M3 Ultra"}], None),
    ],
)
def test_every_gpu_of_the_profile_must_be_listed_by_the_backend_that_it_is_for(
    listed: list[str], backends: list[str], gpus: list[dict[str, str]], said: str | None
) -> None:
    problem = proof.device_problem(listed, backends, gpus)
    assert (said in problem) if said and problem else problem == said


def test_the_proof_computes_on_the_gpu_where_there_is_one() -> None:
    assert proof.benched_devices(["cuda"], LISTED, [RTX]) == ["CUDA0"]
    assert proof.benched_devices(["cuda"], [], []) == [""]
    assert proof.benched_devices(["cpu"], LISTED, [RTX]) == [""]
    assert proof.bench_arguments("m.gguf", "CUDA0")[-4:] == ["-ngl", "99", "-dev", "CUDA0"]


def row(**change: Any) -> str:
    """What llama-bench prints, with a change."""
    return json.dumps([{"backends": "CUDA,RPC", "devices": "CUDA0", "avg_ts": 120.5, **change}])


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (row(), None),
        (row(devices="auto"), "computed on auto, not on CUDA0"),
        (row(backends="RPC"), "knows the backends RPC, not CUDA"),
        (row(avg_ts=0), "computed nothing"),
        ("[]", "no figures"),
        ("error: no device", "no figures"),
    ],
)
def test_a_gpu_build_that_runs_on_the_cpu_is_not_taken(output: str, said: str | None) -> None:
    problem = proof.bench_problem(output, "CUDA0")
    assert (said in problem) if said and problem else problem == said


def test_the_cpu_needs_figures_alone() -> None:
    assert proof.bench_problem(row(backends="CPU", devices="auto"), "") is None


def test_the_model_of_the_proof_is_a_gguf_that_our_own_reader_takes(tmp_path: Path) -> None:
    path = tmp_path / "proof.gguf"
    path.write_bytes(proof.tiny_model())
    header = gguf.read_header(str(path))
    assert header.metadata["general.architecture"] == "llama"
    assert len(header.tensors) == 12
