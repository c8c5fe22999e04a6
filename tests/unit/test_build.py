"""How a build gets its name, what CMake is told, and what the owner is told when it fails."""

from __future__ import annotations

import json
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


TREE = frozenset({"GGML_CUDA", "GGML_CUDA_FA_ALL_QUANTS", "GGML_CUDA_FA_QUANTS"})
OLD_TREE = TREE - {"GGML_CUDA_FA_QUANTS"}
CUDA = {
    "version": "13.0.88",
    "root": "/usr/local/cuda-13.0",
    "nvcc": "/usr/local/cuda-13.0/bin/nvcc",
    "host_compiler": "",
    "stub": "/usr/local/cuda-13.0/lib64/stubs",
    "libraries": [],
    "reason": "",
}
TOOLCHAIN = {
    "compiler": "c++ (Debian 12.2.0-14+deb12u1) 12.2.0",
    "programs": {"cmake": "/usr/bin/cmake", "ninja": "/usr/bin/ninja"},
    "cuda": CUDA,
    "hip": {"version": "7.0.2", "root": "/usr", "environment": {}},
}


def a_recipe(**change: Any) -> build.Recipe:
    """The product's own recipe, with a change."""
    plain: dict[str, Any] = {
        "source": {"kind": "pypi", "sha256": SHA256},
        "build_number": 11311,
        "commit": COMMIT,
        "system": "debian 12",
        "architecture": "x86_64",
        "cpu": build.shaping_cpu(CPUINFO),
    }
    return build.Recipe(**{**plain, **change})


def a_build(toolchain: dict[str, Any] | None = None, tree: frozenset[str] = TREE, **change: Any) -> build.Build:
    """The product's own build, with a change of its recipe."""
    return build.Build(a_recipe(**change), toolchain or TOOLCHAIN, tree)


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
        {"toolchain": {**TOOLCHAIN, "compiler": "c++ (Debian 14.2.0) 14.2.0"}},
        {"system": "debian 13"},
        {"architecture": "aarch64"},
        {"native": False},
        {"cpu": build.shaping_cpu(CPUINFO.replace("avx512f ", ""))},
        {"web_ui": True},
        {"options": {"GGML_BLAS": True}},
        {"source": {"kind": "pypi", "sha256": "0" * 64}},
        {"backends": ("vulkan",)},
        {"backends": ("cuda",), "targets": ("89",)},
        {"backends": ("cuda",), "targets": ("86", "89")},
        {"backends": ("cuda",), "targets": ("89",), "cache_pairs": ("q8_0-q8_0",)},
        {"backends": ("cuda",), "targets": ("89",), "toolchain": {**TOOLCHAIN, "cuda": {**CUDA, "version": "12.8.93"}}},
    ]
    names = {a_build(**change).build_id for change in changes}
    assert len(names) == len(changes)
    assert name not in names


def test_another_compiler_is_another_build_of_the_same_recipe() -> None:
    other = a_build({**TOOLCHAIN, "compiler": "c++ (Debian 14.2.0) 14.2.0"})
    assert other.recipe.recipe_id == a_build().recipe.recipe_id
    assert other.build_id != a_build().build_id


def test_where_a_toolkit_lies_does_not_change_the_name() -> None:
    moved = {**TOOLCHAIN, "cuda": {**CUDA, "root": "/opt/cuda", "nvcc": "/opt/cuda/bin/nvcc"}}
    cuda = {"backends": ("cuda",), "targets": ("89",)}
    assert a_build(moved, **cuda).build_id == a_build(**cuda).build_id
    assert "/opt/cuda" in " ".join(build.configure_argv(a_build(moved, **cuda), "/src", "/build", ccache=True))


names = st.lists(st.sampled_from(["89", "86", "gfx1100"]), max_size=3, unique=True).map(tuple)


@given(
    targets=names,
    native=st.booleans(),
    number=st.integers(1, 99999),
    options=st.dictionaries(st.just("A"), st.booleans()),
)
def test_a_recipe_survives_its_document(
    targets: tuple[str, ...], native: bool, number: int, options: dict[str, bool]
) -> None:
    recipe = a_recipe(targets=targets, native=native, build_number=number, options=options)
    assert build.recipe_of(json.loads(json.dumps(recipe.document()))).recipe_id == recipe.recipe_id


def test_flash_attention_for_all_pairs_is_said_as_the_tree_says_it() -> None:
    cuda: dict[str, Any] = {"backends": ("cuda",), "targets": ("89",)}
    new, old = build.cmake_options(a_build(**cuda)), build.cmake_options(a_build(tree=OLD_TREE, **cuda))
    assert (new["GGML_CUDA_FA_QUANTS"], "GGML_CUDA_FA_ALL_QUANTS" in new) == ("all", False)
    assert (old["GGML_CUDA_FA_ALL_QUANTS"], "GGML_CUDA_FA_QUANTS" in old) == ("ON", False)
    with pytest.raises(build.BuildError, match="no option for FlashAttention"):
        build.cmake_options(a_build(tree=frozenset(), **cuda))


def test_flash_attention_for_the_pairs_in_use_keeps_upstreams_few() -> None:
    cuda: dict[str, Any] = {"backends": ("cuda",), "targets": ("89",), "cache_pairs": ("q8_0-q5_1",)}
    pairs = build.cmake_options(a_build(**cuda))["GGML_CUDA_FA_QUANTS"].split(";")
    assert set(pairs) == {"q8_0-q5_1", *build.PLAIN_PAIRS}
    few = {**cuda, "cache_pairs": build.PLAIN_PAIRS}
    assert "GGML_CUDA_FA_ALL_QUANTS" not in build.cmake_options(a_build(tree=OLD_TREE, **few))


def test_the_trees_options_are_read_from_its_own_list() -> None:
    text = (
        'option(GGML_CUDA "ggml: use CUDA" OFF)\nset   (GGML_CUDA_FA_QUANTS "q4_0-q4_0" CACHE STRING\n'
        "# option(GGML_GONE)\n  option(GGML_HIP_GRAPHS x ON)\n"
    )
    assert build.tree_options(text) == {"GGML_CUDA", "GGML_CUDA_FA_QUANTS", "GGML_HIP_GRAPHS"}


def test_without_the_driver_nothing_is_linked_to_it() -> None:
    cuda: dict[str, Any] = {"backends": ("cuda",), "targets": ("89",)}
    assert "GGML_CUDA_NO_VMM" not in build.cmake_options(a_build(**cuda))
    bare = {**TOOLCHAIN, "cuda": {**CUDA, "stub": ""}}
    assert build.cmake_options(a_build(bare, **cuda))["GGML_CUDA_NO_VMM"] == "ON"


@pytest.mark.parametrize("backend", ["cuda", "hip"])
def test_a_gpu_is_never_compiled_for_without_a_target(backend: str) -> None:
    with pytest.raises(build.BuildError, match="llama_cpp_gpu_targets"):
        build.cmake_options(a_build(backends=(backend,)))


@given(native=st.booleans(), backends=st.lists(st.sampled_from(build.BACKENDS), min_size=1, unique=True).map(tuple))
def test_no_build_is_made_for_whatever_card_is_there(native: bool, backends: tuple[str, ...]) -> None:
    options = build.cmake_options(a_build(native=native, backends=backends, targets=("89", "gfx1100")))
    assert options.get("CMAKE_CUDA_ARCHITECTURES", "89-real") == "89-real"
    assert options.get("GPU_TARGETS", "gfx1100") == "gfx1100"
    several = len(set(backends) - {"cpu"}) > 1
    assert (options.get("GGML_BACKEND_DL") == "ON") == (several or not native)
    assert ("GGML_CPU_ALL_VARIANTS" in options) == (not native)
    assert options["GGML_RPC"] == options["LLAMA_OPENSSL"] == "ON"


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
    ("change", "said"), [({"options": {"-DX": 1}}, "without -D"), ({"backends": ("opencl",)}, "is not known")]
)
def test_an_option_that_cmake_cannot_have_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(build.BuildError, match=said):
        build.cmake_options(a_build(**change))


def test_a_compiler_cache_does_not_change_the_name_but_the_command() -> None:
    line = build.configure_argv(a_build(), "/src", "/build", ccache=True)
    assert line[:7] == ["/usr/bin/cmake", "-S", "/src", "-B", "/build", "-G", "Ninja"]
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


@pytest.mark.parametrize(
    ("output", "code", "said"),
    [
        ("fatal error: error writing to /tmp/x.s: No space left on device", 1, "The disk filled up"),
        ("c++: fatal error: Killed signal terminated program cc1plus", 1, "set llama_cpp_jobs: 4"),
        ("", -9, "The compiler was killed"),
        ("CMake 3.18 or higher is required.  You are running version 3.16.3", 1, "CMake here is 3.16.3"),
        ("ggml.c:1: error: expected expression", 1, "did not compile (status 1)"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_61'", 1, "no code for the GPU architecture 61"),
        ("clang++: error: unsupported HIP gpu architecture: gfx600", 1, "no code for the GPU architecture gfx600"),
        ("#error -- unsupported GNU version! gcc versions later than 12 are not supported!", 1, "does not take this"),
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", 1, "The compiler was killed"),
    ],
)
def test_a_failed_build_is_told_with_its_cause_and_the_end_of_its_output(output: str, code: int, said: str) -> None:
    told = build.build_failure(output, code, 8)
    assert said in told
    assert told.endswith(build.last_lines(output))
