"""Which tools and toolkits on a host are taken, and what the owner is told when none fits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.llamarack.core.plugins.module_utils import toolkits
from ansible_collections.llamarack.core.plugins.module_utils.toolkits import Cuda, Tool
from hypothesis import given
from hypothesis import strategies as st

ADA = ("75", "80", "86", "89", "90")
BLACKWELL = (*ADA, "100", "120")


def nowhere(name: str) -> str | None:
    """A host on which no program is found."""
    return None


def tools(**change: str | None) -> dict[str, Tool | None]:
    """What a Debian 12 has, with a change."""
    texts: dict[str, str | None] = {
        "cc": "cc (Debian 12.2.0-14+deb12u1) 12.2.0",
        "c++": "c++ (Debian 12.2.0-14+deb12u1) 12.2.0",
        "cmake": "cmake version 3.25.1",
        "ninja": "1.11.1",
        "flock": "flock from util-linux 2.38.1",
        **change,
    }
    return {name: Tool(name, f"/usr/bin/{name}", text) if text else None for name, text in texts.items()}


def test_a_debian_12_can_compile() -> None:
    assert toolkits.tools_problem(tools()) is None
    assert toolkits.tools_problem(tools(**{"c++": "Debian clang version 14.0.6"})) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"c++": None}, "No C++ compiler on this host: install g++"),
        ({"cmake": None}, "No CMake"),
        ({"cmake": "cmake version 3.16.3"}, "CMake here is 3.16.3, llama.cpp needs 3.18"),
        ({"c++": "g++ (GCC) 8.5.0 20210514"}, "GCC 8.5.0, llama.cpp needs 9.0"),
    ],
)
def test_what_is_missing_or_too_old_is_named_with_its_remedy(change: dict[str, str | None], said: str) -> None:
    assert said in (toolkits.tools_problem(tools(**change)) or "")


def test_a_cmake_that_is_old_for_the_backend_is_one_that_the_role_replaces() -> None:
    old = tools(cmake="cmake version 3.20.0", ninja=None)
    assert toolkits.build_tools_lacking(old, ["cpu"]) == ["ninja"]
    assert toolkits.build_tools_lacking(old, ["hip"]) == ["cmake", "ninja"]
    assert "needs 3.21" in (toolkits.tools_problem(tools(cmake="cmake version 3.20.0"), ["hip"]) or "")


def test_the_roles_own_cmake_wins_over_the_systems(tmp_path: Path) -> None:
    (tmp_path / "cmake").write_text("")
    found = toolkits.find_tools(lambda name: f"/usr/bin/{name}", lambda argv: (0, argv[0], ""), own=str(tmp_path))
    assert found["cmake"]
    assert found["cmake"].path == f"{tmp_path}/cmake"
    assert found["ninja"]
    assert found["ninja"].path == "/usr/bin/ninja"


@pytest.mark.parametrize(
    ("driver", "toolkit", "runs"),
    [
        ("580.65.06", "13.0.88", True),
        ("550.54.15", "13.0.88", False),
        ("550.54.15", "12.8.93", True),
        ("525.60.13", "12.0", True),
        ("470.223.02", "12.4", False),
        ("470.223.02", "11.8", True),
        ("595.10", "14.0", True),
        ("580.65.06", "14.0", False),
    ],
)
def test_a_driver_runs_what_is_not_newer_than_it(driver: str, toolkit: str, runs: bool) -> None:
    assert toolkits.driver_supports(driver, toolkit) is runs


def test_rocm_knows_the_cards_of_its_time() -> None:
    assert toolkits.rocm_supports("7.0.2", "gfx1100")
    assert toolkits.rocm_supports("6.0", "gfx942")
    assert not toolkits.rocm_supports("6.1", "gfx1201")
    assert toolkits.rocm_supports("6.3.1", "gfx906")
    assert not toolkits.rocm_supports("7.0", "gfx906")
    assert not toolkits.rocm_supports("10.0", "gfx803")


def a_cuda(version: str, architectures: tuple[str, ...] = BLACKWELL, lacking: str = "") -> Cuda:
    """A toolkit in its usual place."""
    root = f"/usr/local/cuda-{version[:4]}"
    return Cuda(version, root, f"{root}/bin/nvcc", architectures, 15, lacking)


def test_the_newest_toolkit_that_the_driver_runs_is_taken() -> None:
    there = [a_cuda("13.0.88"), a_cuda("12.8.93"), a_cuda("11.8.89", ADA)]
    chosen, reason = toolkits.choose_cuda(there, ["89"], ["550.54.15"])
    assert chosen
    assert chosen.version == "12.8.93"
    assert "13.0.88 needs a newer driver than 550.54.15" in reason
    chosen, _ = toolkits.choose_cuda(there, ["89"], ["580.65.06"])
    assert chosen
    assert chosen.version == "13.0.88"


@pytest.mark.parametrize(
    ("there", "targets", "drivers", "said"),
    [
        (
            [],
            ["89"],
            [],
            "There is no CUDA toolkit on this host: install a CUDA toolkit, or set toolchain_cuda_install",
        ),
        ([a_cuda("11.8.89", ADA)], ["120"], ["580.65"], "11.8.89 makes no code for compute capability 12.0"),
        ([a_cuda("13.0.88")], ["89"], ["535.1"], "install CUDA 12 (what the driver 535.1 runs)"),
        ([a_cuda("13.0.88", ADA, "the headers of cuBLAS")], ["89"], [], "13.0.88 lacks the headers of cuBLAS"),
    ],
)
def test_what_does_not_fit_is_told_with_what_would(
    there: list[Cuda], targets: list[str], drivers: list[str], said: str
) -> None:
    chosen, reason = toolkits.choose_cuda(there, targets, drivers)
    assert chosen is None
    assert said in reason


versions = st.sampled_from(["11.8.89", "12.0.1", "12.8.93", "13.0.88", "13.4.1"])
drivers = st.sampled_from(["470.1", "525.60", "550.54.15", "580.65.06", "600.1"])


@given(st.lists(versions, max_size=4), st.lists(drivers, max_size=3))
def test_a_chosen_toolkit_always_runs_on_every_driver_and_no_newer_one_would(
    there: list[str], wanted: list[str]
) -> None:
    found = [a_cuda(version) for version in sorted(there, reverse=True)]
    chosen, _ = toolkits.choose_cuda(found, ["89"], wanted)
    able = [one for one in there if all(toolkits.driver_supports(driver, one) for driver in wanted)]
    assert (chosen is None) == (not able)
    if chosen:
        assert chosen.version == max(able, key=toolkits.numbers)


def installed(system: Path, place: str, version: str, gcc: int = 15) -> Callable[[list[str]], tuple[int, str, str]]:
    """Lay a toolkit's files out, and return what answers for its compiler."""
    root = system / place
    for folder in ("bin", "include/crt", "lib64/stubs"):
        (root / folder).mkdir(parents=True)
    for name in ("bin/nvcc", "include/cublas_v2.h", "lib64/libcudart.so.13", "lib64/stubs/libcuda.so"):
        (root / name).write_text("")
    (root / "lib64" / "libcudart.so").symlink_to("libcudart.so.13")
    (root / "include" / "crt" / "host_config.h").write_text(f"#if __GNUC__ > {gcc}\n#error unsupported GNU version\n")

    def run(argv: list[str]) -> tuple[int, str, str]:
        if argv[1] == "--version":
            return 0, f"Cuda compilation tools, release {version[:4]}, V{version}\n", ""
        return 0, "sm_75\nsm_89\n", ""

    return run


def test_every_toolkit_is_found_and_path_has_no_advantage(tmp_path: Path) -> None:
    old = installed(tmp_path, "usr/local/cuda-12.8", "12.8.93", gcc=14)
    new = installed(tmp_path, "usr/local/cuda-13.0", "13.0.88")
    (tmp_path / "usr/local/cuda").symlink_to("cuda-12.8")

    def run(argv: list[str]) -> tuple[int, str, str]:
        return (new if "13.0" in argv[0] else old)(argv)

    found = toolkits.find_cuda(lambda name: str(tmp_path / "usr/local/cuda-12.8/bin/nvcc"), run, system=tmp_path)
    assert [(one.version, one.newest_gcc, one.architectures) for one in found] == [
        ("13.0.88", 15, ("75", "89")),
        ("12.8.93", 14, ("75", "89")),
    ]
    section, problem = toolkits.cuda_section(found, ["89"], [], tools()["c++"], nowhere)
    assert problem is None
    assert section
    assert section["nvcc"].endswith("cuda-13.0/bin/nvcc")
    assert section["stub"].endswith("cuda-13.0/lib64/stubs")
    assert [Path(path).name for path in section["libraries"]] == ["libcudart.so.13"]


def test_an_older_compiler_is_given_to_nvcc_where_the_hosts_own_is_too_new() -> None:
    new = Tool("c++", "/usr/bin/c++", "c++ (Debian 14.2.0-8) 14.2.0")
    assert toolkits.host_compiler(new, 14, nowhere) == ""
    assert toolkits.host_compiler(new, 0, nowhere) == ""
    assert toolkits.host_compiler(new, 13, {"g++-12": "/usr/bin/g++-12"}.get) == "/usr/bin/g++-12"
    assert toolkits.host_compiler(new, 13, nowhere) is None
    section, problem = toolkits.cuda_section([a_cuda("12.4.99")], ["89"], [], new, nowhere)
    assert section, "takes GCC up to 15"
    old = Cuda("12.4.99", "/c", "/c/bin/nvcc", ADA, 13)
    section, problem = toolkits.cuda_section([old], ["89"], [], new, nowhere)
    assert section is None
    assert "install g++-13" in (problem or "")


def hipconfig(version: str) -> Callable[[list[str]], tuple[int, str, str]]:
    """What answers for hipconfig."""
    answers = {"--version": f"{version}\n", "--hipclangpath": "/opt/rocm/llvm/bin\n", "--rocmpath": "/opt/rocm\n"}
    return lambda argv: (0, answers[argv[1]], "")


def test_rocm_is_found_and_its_version_held_against_the_floor() -> None:
    found = toolkits.find_rocm({"hipconfig": "/usr/bin/hipconfig"}.get, hipconfig("7.0.51831-a3e329ad8"), Path("/none"))
    section, problem = toolkits.hip_section(found, ["gfx1100"])
    assert problem is None
    assert section
    assert section["version"] == "7.0.51831"
    assert section["environment"] == {"HIPCXX": "/opt/rocm/llvm/bin/clang", "HIP_PATH": "/opt/rocm"}
    old = toolkits.find_rocm({"hipconfig": "/usr/bin/hipconfig"}.get, hipconfig("5.7.1"), Path("/none"))
    assert "ROCm here is 5.7.1, llama.cpp needs 6.1" in (toolkits.hip_section(old, ["gfx1100"])[1] or "")
    assert "no ROCm on this host" in (toolkits.hip_section(None, ["gfx1100"])[1] or "")


def test_vulkan_and_metal_say_what_is_missing() -> None:
    assert "glslc" in (toolkits.vulkan_section(nowhere, lambda argv: (0, "", ""))[1] or "")
    section, problem = toolkits.vulkan_section({"glslc": "/usr/bin/glslc"}.get, lambda argv: (0, "shaderc v2023.2", ""))
    assert problem is None
    assert section
    assert section["version"] == "2023.2"
    assert "xcode-select --install" in (toolkits.metal_section(lambda argv: (2, "", "error"))[1] or "")
    section, problem = toolkits.metal_section(lambda argv: (0, "/Library/Developer/CommandLineTools\n", ""))
    assert section
    assert section["root"] == "/Library/Developer/CommandLineTools"
