"""How a build gets its name, what CMake is told, and what the owner is told when it fails."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.llamarack.core.plugins.module_utils import build
from hypothesis import given
from hypothesis import strategies as st

COMMIT = "0c1e57098bba43ac29e6e3b677cdceebdd22334f"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
PYPI = {"kind": "pypi", "package": "llama-cpp-python", "version": "0.3.36", "sha256": SHA256}
GIT = {"kind": "git", "repository": "https://example.org/llama.cpp", "tag": "b11311", "commit": COMMIT}
CPUINFO = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t: 17\nflags\t: fpu avx2 fma avx512f rdtscp sha_ni\n"


def a_build(**change: Any) -> build.Build:
    """The product's own build, with a change."""
    plain: dict[str, Any] = {
        "source": {"kind": "pypi", "sha256": SHA256},
        "build_number": 11311,
        "commit": COMMIT,
        "compiler": "c++ (Debian 12.2.0-14+deb12u1) 12.2.0",
        "architecture": "x86_64",
        "cpu": build.shaping_cpu(CPUINFO),
    }
    return build.Build(**{**plain, **change})


def test_a_source_is_named_by_what_pins_it() -> None:
    assert build.source_id(PYPI, 11311) == SHA256[:16]
    assert build.source_id({"kind": "archive", "path": "/tmp/x.tar", "sha256": SHA256}, 1) == SHA256[:16]
    assert build.source_id(GIT, 11311) == COMMIT[:16]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"kind": "svn"}, "must be one of archive, git, pypi"),
        ({"kind": "pypi", "package": "x"}, "lacks version and sha256"),
        ({"kind": "archive", "sha256": SHA256}, "needs either url or path"),
        ({"kind": "archive", "sha256": SHA256, "url": "u", "path": "p"}, "not both"),
        ({**GIT, "tag": "b11312"}, "set llama_cpp_build_number to 11312"),
        ({**GIT, "commit": "0c1e570"}, "40 hex digits"),
        ({**PYPI, "sha256": "abc"}, "64 hex digits"),
    ],
)
def test_a_source_that_pins_nothing_is_refused(source: dict[str, str], said: str) -> None:
    with pytest.raises(build.BuildError, match=said):
        build.source_id(source, 11311)


def test_the_same_inputs_have_the_same_name_and_any_other_another() -> None:
    name = a_build().build_id
    assert name == a_build().build_id
    assert name.startswith("b11311-cpu-native-")
    changes: list[dict[str, Any]] = [
        {"build_number": 11312},
        {"commit": "1" * 40},
        {"compiler": "c++ (Debian 14.2.0) 14.2.0"},
        {"architecture": "aarch64"},
        {"native": False},
        {"cpu": build.shaping_cpu(CPUINFO.replace("avx512f ", ""))},
        {"web_ui": True},
        {"options": {"GGML_BLAS": True}},
        {"source": {"kind": "pypi", "sha256": "0" * 64}},
    ]
    names = {a_build(**change).build_id for change in changes}
    assert len(names) == len(changes)
    assert name not in names


def test_an_option_that_says_what_is_said_already_changes_nothing() -> None:
    assert a_build(options={"GGML_RPC": True}).build_id == a_build().build_id


def test_kernel_flags_that_shape_no_code_do_not_change_the_name() -> None:
    assert build.shaping_cpu(CPUINFO.replace("rdtscp", "rdtscp md_clear cpuid")) == build.shaping_cpu(CPUINFO)
    assert "avx512f" in build.shaping_cpu(CPUINFO)


def test_the_owner_has_the_last_word_on_options() -> None:
    options = build.cmake_options(a_build(options={"GGML_NATIVE": False, "CMAKE_BUILD_TYPE": "Debug"}))
    assert options["GGML_NATIVE"] == "OFF"
    assert options["CMAKE_BUILD_TYPE"] == "Debug"
    assert options["LLAMA_BUILD_COMMIT"] == "0c1e570"
    assert options["LLAMA_USE_PREBUILT_UI"] == "OFF"


@pytest.mark.parametrize(
    ("change", "said"), [({"options": {"-DX": 1}}, "without -D"), ({"backends": ("cuda",)}, "is not known")]
)
def test_an_option_that_cmake_cannot_have_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(build.BuildError, match=said):
        build.cmake_options(a_build(**change))


def test_a_compiler_cache_does_not_change_the_name_but_the_command() -> None:
    line = build.configure_argv(a_build(), "/src", "/build", ccache=True)
    assert line[:7] == ["cmake", "-S", "/src", "-B", "/build", "-G", "Ninja"]
    assert "-DGGML_CCACHE=ON" in line
    assert "-DGGML_CCACHE=OFF" in build.configure_argv(a_build(), "/src", "/build", ccache=False)


def test_the_owners_language_does_not_reach_the_compiler_cache() -> None:
    environment = build.compiler_environment("/opt/x", "/var/cache/x")
    assert {environment[name] for name in ("LANG", "LC_ALL", "LC_CTYPE", "LC_MESSAGES")} == {"C"}
    assert environment["CCACHE_BASEDIR"] == "/opt/x"


@given(
    wanted=st.integers(0, 64), cpus=st.floats(0.1, 512), memory_bytes=st.integers(0, 2**42)
)  # fmt: skip
def test_there_is_always_a_compiler_and_never_more_than_memory_carries(
    wanted: int, cpus: float, memory_bytes: int
) -> None:
    jobs = build.compile_jobs(wanted, cpus, memory_bytes)
    assert jobs >= 1
    if wanted:
        assert jobs == wanted
    elif jobs > 1:
        assert jobs <= cpus
        assert jobs * build.BYTES_PER_JOB <= memory_bytes


def tools(**change: str | None) -> dict[str, build.Tool | None]:
    """What a Debian 12 has, with a change."""
    texts: dict[str, str | None] = {
        "cc": "cc (Debian 12.2.0-14+deb12u1) 12.2.0",
        "c++": "c++ (Debian 12.2.0-14+deb12u1) 12.2.0",
        "cmake": "cmake version 3.25.1",
        "ninja": "1.11.1",
        "flock": "flock from util-linux 2.38.1",
        **change,
    }
    return {name: build.Tool(name, text) if text else None for name, text in texts.items()}


def test_a_debian_12_can_compile() -> None:
    assert build.toolchain_problem(tools()) is None
    assert build.toolchain_problem(tools(**{"c++": "Debian clang version 14.0.6"})) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"c++": None}, "no C++ compiler on this host: install g++"),
        ({"cmake": None}, "no CMake"),
        ({"cmake": "cmake version 3.16.3"}, "CMake here is 3.16.3, llama.cpp needs 3.18"),
        ({"c++": "g++ (GCC) 8.5.0 20210514"}, "GCC 8.5.0, llama.cpp needs 9.0"),
    ],
)
def test_what_is_missing_or_too_old_is_named_with_its_remedy(change: dict[str, str | None], said: str) -> None:
    problem = build.toolchain_problem(tools(**change))
    assert problem
    assert said in problem


@pytest.mark.parametrize(
    ("output", "code", "said"),
    [
        ("fatal error: error writing to /tmp/x.s: No space left on device", 1, "The disk filled up"),
        ("c++: fatal error: Killed signal terminated program cc1plus", 1, "set llama_cpp_jobs: 4"),
        ("", -9, "The compiler was killed"),
        ("CMake 3.18 or higher is required.  You are running version 3.16.3", 1, "CMake here is 3.16.3"),
        ("ggml.c:1: error: expected expression", 1, "did not compile (status 1)"),
    ],
)
def test_a_failed_build_is_told_with_its_cause_and_the_end_of_its_output(output: str, code: int, said: str) -> None:
    told = build.build_failure(output, code, 8)
    assert said in told
    assert told.endswith(build.last_lines(output))


@pytest.mark.parametrize(
    "output",
    [
        "llama.cpp 0.5.0 (build 11311, commit 0c1e570)\nbuilt with GNU 12.2.0",
        "version: 11311 (0c1e57098)\nbuilt with cc",
    ],
)
def test_both_spellings_of_the_version_are_understood(output: str) -> None:
    assert build.version_problem(output, 11311, COMMIT) is None
    assert "but 11312" in str(build.version_problem(output, 11312, COMMIT))
    assert build.version_problem(output, 11311, "1" * 40)


def test_a_program_that_names_no_version_proves_nothing() -> None:
    assert build.version_problem("Segmentation fault", 11311, COMMIT)


def test_devices_are_read_from_the_list_and_from_nowhere_else() -> None:
    listed = "load_backend: x\nAvailable devices:\n  CUDA0: NVIDIA GeForce RTX 4090 (24091 MiB, 23690 MiB free)\n"
    assert build.listed_devices(listed) == ["CUDA0: NVIDIA GeForce RTX 4090 (24091 MiB, 23690 MiB free)"]
    assert build.listed_devices("Available devices:\n  (none)\n") == []
    assert build.listed_devices("error while loading shared libraries") is None


def test_libraries_that_are_not_found_are_named_once() -> None:
    ldd = "\tlibgomp.so.1 => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x0)\n\tlibgomp.so.1 => not found\n"
    assert build.unresolved_libraries(ldd) == ["libgomp.so.1"]
