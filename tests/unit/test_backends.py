"""Which backend each kind of host gets, with which reason, and the exact CMake line that follows."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llamarack.core.plugins.module_utils import backends, build
from ansible_collections.llamarack.core.plugins.module_utils.backends import Wish
from ansible_collections.llamarack.core.plugins.module_utils.build import BuildError

GOLDEN = Path(__file__).parents[1] / "golden" / "cmake"
TREE = frozenset({"GGML_CUDA_FA_ALL_QUANTS", "GGML_CUDA_FA_QUANTS"})

RTX_4090 = {"vendor": "NVIDIA", "name": "NVIDIA GeForce RTX 4090", "compute_capability": "8.9", "gfx_target": None}
H100 = {"vendor": "NVIDIA", "name": "NVIDIA H100 80GB HBM3", "compute_capability": "9.0", "gfx_target": None}
XTX = {"vendor": "AMD", "name": "Radeon RX 7900 XTX", "compute_capability": None, "gfx_target": "gfx1100"}
OLD_RADEON = {"vendor": "AMD", "name": "Radeon RX 580", "compute_capability": None, "gfx_target": "gfx803"}
M3 = {"vendor": "Apple", "name": "Apple M3 Ultra", "compute_capability": None, "gfx_target": None}


def profile(*gpus: dict[str, Any], system: str = "Linux", unseen: tuple[str, ...] = ()) -> dict[str, Any]:
    """What of a host profile decides."""
    return {"gpus": list(gpus), "system": system, "unseen": list(unseen)}


@pytest.mark.parametrize(
    ("host", "rocm", "backend", "targets", "said"),
    [
        (profile(), None, "cpu", (), "no GPU was seen"),
        (profile(RTX_4090), None, "cuda", ("89",), "RTX 4090 computes with CUDA"),
        (profile(H100, H100), None, "cuda", ("90",), "2 x NVIDIA H100"),
        (profile(RTX_4090, H100), None, "cuda", ("89", "90"), "RTX 4090 and NVIDIA H100"),
        (profile(RTX_4090, XTX), None, "cuda", ("89",), "AMD is left alone (pin llama_cpp_backend: [cuda, hip]"),
        (profile(XTX), "7.0.2", "hip", ("gfx1100",), "RX 7900 XTX computes with HIP"),
        (profile(OLD_RADEON), "7.0.2", "vulkan", (), "ROCm 7.0.2 has no code for Radeon RX 580 (gfx803), Vulkan does"),
        (profile({**XTX, "gfx_target": None}), None, "vulkan", (), "gfx target of Radeon RX 7900 XTX is not known"),
        (profile(M3, system="Darwin"), None, "metal", (), "Apple M3 Ultra computes with Metal"),
        (profile(unseen=("nvidia-smi shows no card",)), None, "cpu", (), "nvidia-smi shows no card"),
    ],
)
def test_auto_takes_what_the_host_has_and_says_why(
    host: dict[str, Any], rocm: str | None, backend: str, targets: tuple[str, ...], said: str
) -> None:
    choice = backends.choose(Wish(), host, rocm)
    assert choice.backends == (backend,)
    assert choice.targets == targets
    assert said in choice.decisions[0].reason


@pytest.mark.parametrize(
    ("wish", "host", "said"),
    [
        (Wish(backends=("cuda",)), profile(), "llama_cpp_backend is cuda, but no GPU for it was seen on this host"),
        (Wish(backends=("cuda",)), profile(unseen=("a card has no driver",)), "a card has no driver"),
        (Wish(backends=("hip",)), profile(RTX_4090), "llama_cpp_backend is hip, but no GPU"),
        (Wish(backends=("metal",)), profile(), "Metal is Apple's"),
        (Wish(backends=("cuda",)), profile(M3, system="Darwin"), "this host is a Mac"),
        (Wish(backends=("auto", "cuda")), profile(RTX_4090), "auto alone"),
        (Wish(backends=("opencl",)), profile(), "llama_cpp_backend is opencl: use auto or some of"),
        (Wish(backends=("cuda",), builder=True), profile(), "list it in llama_cpp_gpu_targets"),
        (Wish(backends=("cuda",), targets=("native",)), profile(RTX_4090), "llama_cpp_gpu_targets has 'native'"),
    ],
)
def test_a_pin_without_its_hardware_is_an_error_and_no_fallback(wish: Wish, host: dict[str, Any], said: str) -> None:
    with pytest.raises(BuildError) as error:
        backends.choose(wish, host, None)
    assert said in str(error.value)


def test_a_builder_compiles_for_cards_that_it_does_not_have() -> None:
    wish = Wish(backends=("cuda", "hip"), targets=("8.9", "sm_86", "gfx1100"), builder=True, native=False)
    choice = backends.choose(wish, profile(), None)
    assert choice.backends == ("cuda", "hip")
    assert choice.targets == ("86", "89", "gfx1100")


def test_used_pairs_are_those_of_the_instances_beside_upstreams() -> None:
    choice = backends.choose(Wish(flash_attention="used", cache_pairs=("q8_0-q5_1",)), profile(RTX_4090), None)
    assert choice.cache_pairs == ("bf16-bf16", "f16-f16", "q4_0-q4_0", "q8_0-q5_1", "q8_0-q8_0")
    assert backends.choose(Wish(), profile(RTX_4090), None).cache_pairs == ("all",)


CUDA = {
    "version": "13.0.88", "root": "/usr/local/cuda-13.0", "nvcc": "/usr/local/cuda-13.0/bin/nvcc",
    "host_compiler": "", "stub": "/usr/local/cuda-13.0/lib64/stubs", "libraries": [], "reason": "",
}  # fmt: skip
LINUX = {
    "compiler": "c++ (Debian 12.2.0-14+deb12u1) 12.2.0",
    "programs": {"cmake": "/usr/bin/cmake", "ninja": "/usr/bin/ninja"},
    "cuda": CUDA,
    "hip": {"version": "7.0.2", "environment": {}},
}
MAC = {
    "compiler": "Apple clang version 17.0.0",
    "programs": {"cmake": "/opt/homebrew/bin/cmake", "ninja": "/opt/homebrew/bin/ninja"},
    "metal": {"root": "/Library/Developer/CommandLineTools"},
}

# The profiles of the lab: the cards of each, where it runs, and what its owner says.
LAB: dict[str, tuple[dict[str, Any], str, dict[str, Any], Wish]] = {
    "epyc_cpu": (profile(), "debian 12", LINUX, Wish()),
    "hybrid_gpu": (profile(RTX_4090), "debian 12", LINUX, Wish()),
    "nvme_mmap": (profile(), "ubuntu 24.04", LINUX, Wish()),
    "apple_metal": (profile(M3, system="Darwin"), "macos 15", MAC, Wish()),
    "amd_rocm": (profile(XTX), "ubuntu 24.04", LINUX, Wish()),
    "cloud_gpu": (profile(H100), "ubuntu 22.04", LINUX, Wish(native=False)),
    "builder": (
        profile(), "debian 12", {**LINUX, "cuda": {**CUDA, "stub": ""}},
        Wish(backends=("cuda", "vulkan"), targets=("86", "89"), builder=True, native=False, flash_attention="used"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAB)
def test_the_cmake_line_of_each_profile_of_the_lab_is_exactly_this(name: str) -> None:
    host, system, toolchain, wish = LAB[name]
    choice = backends.choose(wish, host, "7.0.2")
    recipe = build.Recipe(
        source={"kind": "pypi", "sha256": "8" * 64},
        build_number=11311,
        commit="0c1e57098bba43ac29e6e3b677cdceebdd22334f",
        system=system,
        architecture="arm64" if toolchain is MAC else "x86_64",
        backends=choice.backends,
        targets=choice.targets,
        native=choice.native,
        cache_pairs=choice.cache_pairs,
    )
    argv = build.configure_argv(build.Build(recipe, toolchain, TREE), "SOURCE", "BUILD", ccache=True)
    line = " \\\n  ".join(shlex.quote(argument) for argument in argv) + "\n"
    assert line == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")
    assert "native" not in line.replace("GGML_NATIVE", "").lower(), "an architecture is never called native"
