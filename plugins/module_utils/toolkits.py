"""What compiles llama.cpp on a host: compilers, CMake, Ninja and the GPU makers' toolkits, and which of them fit.

Programs are found and asked through two functions that the caller gives; nothing else is touched but the toolkits'
own folders.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Finds a program's path; None where it is not there.
Which = Callable[[str], "str | None"]
# Runs a command; returns its status, output and error output.
Run = Callable[[list[str]], "tuple[int, str, str]"]

# The tree itself says 3.14; its asset script and the CUDA backend need 3.18, Vulkan and HIP more (the CMakeLists.txt of
# each in ggml/src).
CMAKE_MINIMUM = (3, 18)
CMAKE_MINIMUM_OF = {"vulkan": (3, 19), "hip": (3, 21)}
# The first GCC whose C++17 (std::filesystem included) compiles the tree without extra libraries.
GCC_MINIMUM = (9, 0)
# ggml/src/ggml-hip/CMakeLists.txt ends with an error below.
ROCM_MINIMUM = (6, 1)
# What ROCm's repositories carry now: what a host that has none would get.
ROCM_NEWEST = "10.0"

# The oldest driver on which programs of a toolkit's major version run (NVIDIA, CUDA Toolkit Release Notes, "CUDA
# Toolkit and Minimum Required Driver Version for CUDA Minor Version Compatibility"). It is enough because nothing is
# left to the driver's own compiler: code is made for exactly the cards' architectures.
CUDA_DRIVERS = {11: (450, 80), 12: (525, 60), 13: (580, 0)}

# AMD's targets that rocBLAS has code for: the first ROCm, and the last where support ended (AMD, "Compatibility matrix"
# and the release notes; upstream's own ROCm 10.0 release has the same list).
ROCM_TARGETS: dict[str, tuple[tuple[int, int], tuple[int, int] | None]] = {
    "gfx906": ((2, 0), (6, 3)),
    "gfx908": ((3, 5), None),
    "gfx90a": ((4, 3), None),
    "gfx942": ((6, 0), None),
    "gfx950": ((7, 0), None),
    "gfx101": ((6, 4), None),
    "gfx103": ((5, 0), None),
    "gfx110": ((5, 7), None),
    "gfx115": ((6, 4), None),
    "gfx120": ((6, 4), None),
}

# Where toolkits are installed: by NVIDIA, by distributions, and by the role toolchain.
CUDA_PLACES = (
    "usr/local/cuda-*",
    "usr/local/cuda",
    "opt/cuda*",
    "usr/lib/cuda",
    "opt/llamarack/cuda/*/lib/python3*/site-packages/nvidia/cu*",
)
ROCM_PLACES = ("opt/rocm/bin/hipconfig", "opt/rocm-*/bin/hipconfig", "usr/bin/hipconfig")

# The toolkit's libraries that the programs load (ggml/src/ggml-cuda/CMakeLists.txt).
CUDA_LIBRARIES = ("libcudart.so", "libcublas.so", "libcublasLt.so")


def numbers(text: str) -> tuple[int, ...]:
    """A version as numbers: ``550.54.15`` gives (550, 54, 15); nothing where there is none."""
    found = re.search(r"\d+(?:\.\d+)*", text)
    return tuple(int(number) for number in found[0].split(".")) if found else ()


def dotted(version: Sequence[int]) -> str:
    """Numbers as a version."""
    return ".".join(str(number) for number in version)


def driver_supports(driver: str, toolkit: str) -> bool:
    """Whether programs of a CUDA toolkit run on an NVIDIA driver.

    :param driver: for example ``550.54.15``.
    :param toolkit: for example ``12.8.93``. One newer than :data:`CUDA_DRIVERS` is held to need a newer driver than
        any that is known there.
    """
    major = (numbers(toolkit) or (0,))[0]
    newest = max(CUDA_DRIVERS)
    floor = CUDA_DRIVERS.get(major, (CUDA_DRIVERS[newest][0] + 1, 0) if major > newest else (0, 0))
    return numbers(driver)[:2] >= floor


def rocm_supports(version: str, target: str) -> bool:
    """Whether a ROCm has code for a card.

    :param version: of ROCm, for example ``7.0.2``.
    :param target: the card's, for example ``gfx1100``.
    """
    for prefix, (first, last) in ROCM_TARGETS.items():
        if target.startswith(prefix):
            return numbers(version)[:2] >= first and (last is None or numbers(version)[:2] <= last)
    return False


@dataclass(frozen=True)
class Tool:
    """A program of the toolchain, as it introduces itself."""

    name: str
    path: str
    text: str

    @property
    def version(self) -> tuple[int, ...]:
        """The version's numbers; empty when the program prints none."""
        # Distributions put their package's version in brackets before the compiler's own.
        found = re.search(r"(\d+(?:\.\d+)+)", re.sub(r"\(.*?\)", "", self.text))
        return numbers(found[1]) if found else ()


def find_tools(
    which: Which, run: Run, options: Mapping[str, Any] | None = None, own: str = "", on_mac: bool = False
) -> dict[str, Tool | None]:
    """Ask each program of the toolchain for its version; None for one that is not there or does not run.

    :param options: the owner's CMake options; compilers that they name are asked instead.
    :param own: a folder with a CMake and a Ninja of the role's own, which win where they are.
    """
    chosen = options or {}
    programs = {
        "cc": str(chosen.get("CMAKE_C_COMPILER", "cc")),
        "c++": str(chosen.get("CMAKE_CXX_COMPILER", "c++")),
        "cmake": "cmake",
        "ninja": "ninja",
        **({} if on_mac else {"flock": "flock"}),
    }
    found: dict[str, Tool | None] = {}
    for name, program in programs.items():
        mine = Path(own, name) if own else None
        if mine and mine.is_file():
            program = str(mine)
        path = program if program.startswith("/") else which(program)
        status, out, _err = run([path, "--version"]) if path else (1, "", "")
        found[name] = Tool(name, str(path), out.partition("\n")[0].strip()) if status == 0 else None
    return found


def cmake_floor(backends: Iterable[str]) -> tuple[int, ...]:
    """The oldest CMake that configures some backends."""
    return max([CMAKE_MINIMUM, *(CMAKE_MINIMUM_OF[name] for name in backends if name in CMAKE_MINIMUM_OF)])


def build_tools_lacking(tools: Mapping[str, Tool | None], backends: Iterable[str]) -> list[str]:
    """Which of CMake and Ninja are missing or too old; both come from PyPI, too."""
    cmake = tools.get("cmake")
    lacking = [] if cmake and cmake.version >= cmake_floor(backends) else ["cmake"]
    return lacking if tools.get("ninja") else [*lacking, "ninja"]


def tools_problem(tools: Mapping[str, Tool | None], backends: Iterable[str] = ()) -> str | None:
    """The sentence about the first tool that is missing or too old, or None."""
    what = {
        "cc": "No C compiler",
        "c++": "No C++ compiler",
        "cmake": "No CMake",
        "ninja": "No Ninja",
        "flock": "No flock (util-linux)",
    }
    for name in tools:
        if tools[name] is None:
            return (
                f"{what[name]} on this host: install g++, cmake and ninja (on a Mac: xcode-select --install and brew "
                "install cmake ninja), or let the role do it (system_packages_manage: true)."
            )
    cmake, compiler, floor = tools["cmake"], tools["c++"], cmake_floor(backends)
    if cmake and cmake.version < floor:
        return f"CMake here is {dotted(cmake.version)}, llama.cpp needs {dotted(floor)}: install a newer one."
    if compiler and "clang" not in compiler.text.lower() and compiler.version < GCC_MINIMUM:
        return (
            f"The C++ compiler here is GCC {dotted(compiler.version)}, llama.cpp needs {dotted(GCC_MINIMUM)}: "
            "install a newer one."
        )
    return None


@dataclass(frozen=True)
class Cuda:
    """A CUDA toolkit.

    :param architectures: compute capabilities that its compiler makes code for (``89``), as it says itself.
    :param newest_gcc: the newest major version of GCC that its headers take; 0 where they do not say.
    :param lacking: what of a whole toolkit is not there, in words; "" where nothing is.
    """

    version: str
    root: str
    nvcc: str
    architectures: tuple[str, ...]
    newest_gcc: int
    lacking: str = ""


def cuda_roots(which: Which, wanted: str = "", system: Path = Path("/")) -> list[Path]:
    """Every folder that may hold a CUDA toolkit: the owner's alone, else the known places and PATH's."""
    if wanted:
        return [Path(wanted)]
    roots = [root for place in CUDA_PLACES for root in sorted(system.glob(place)) if (root / "bin" / "nvcc").exists()]
    on_path = which("nvcc")
    if on_path:
        roots.append(Path(on_path).resolve().parent.parent)
    return list({root.resolve(): root for root in roots}.values())


def find_cuda(which: Which, run: Run, wanted: str = "", system: Path = Path("/")) -> list[Cuda]:
    """The CUDA toolkits on a host, newest first; the one on PATH has no advantage."""
    found = []
    for root in cuda_roots(which, wanted, system):
        nvcc = root / "bin" / "nvcc"
        status, out, _err = run([str(nvcc), "--version"]) if nvcc.exists() else (1, "", "")
        version = re.search(r"release \S+, V(\S+)", out)
        if status != 0 or not version:
            continue
        status, out, _err = run([str(nvcc), "--list-gpu-code"])
        codes = re.findall(r"^sm_(\d+)$", out, re.MULTILINE) if status == 0 else []
        lacking = "" if (root / "include" / "cublas_v2.h").exists() else "the headers of cuBLAS"
        found.append(Cuda(version[1], str(root), str(nvcc), tuple(codes), newest_gcc(root), lacking))
    return sorted(found, key=lambda one: numbers(one.version), reverse=True)


def newest_gcc(root: Path) -> int:
    """The newest GCC that a toolkit takes: what its own header checks, without which nvcc ends with an error."""
    for path in (root / "include" / "crt" / "host_config.h", root / "include" / "host_config.h"):
        if path.is_file():
            found = re.search(r"__GNUC__ > (\d+)", path.read_text(encoding="utf-8", errors="replace"))
            return int(found[1]) if found else 0
    return 0


def cuda_problem(toolkit: Cuda, targets: Iterable[str], drivers: Iterable[str]) -> str | None:
    """Why a toolkit does not fit cards and drivers, in words, or None."""
    if toolkit.lacking:
        return f"lacks {toolkit.lacking}"
    missing = [target for target in targets if toolkit.architectures and target not in toolkit.architectures]
    if missing:
        return f"makes no code for compute capability {missing[0][:-1]}.{missing[0][-1]}"
    old = [driver for driver in drivers if not driver_supports(driver, toolkit.version)]
    return f"needs a newer driver than {old[0]}" if old else None


def choose_cuda(toolkits: Sequence[Cuda], targets: Sequence[str], drivers: Sequence[str]) -> tuple[Cuda | None, str]:
    """The newest toolkit that fits cards and drivers, and the reason; or None and what is wrong, in one sentence.

    :param targets: compute capabilities without the dot (``89``).
    :param drivers: versions of the drivers that will run the build; none where they are not known.
    """
    problems = [(one, cuda_problem(one, targets, drivers)) for one in toolkits]
    fitting = [one for one, problem in problems if not problem]
    passed = [f"{one.version} {problem}" for one, problem in problems if problem]
    if fitting:
        for_whom = f" that driver {' and '.join(drivers)} runs" if drivers else ""
        why = f"the newest of {len(toolkits)} here{for_whom} and that makes code for {', '.join(targets)}"
        return fitting[0], "; ".join([why, *passed])
    able = max((major for major in CUDA_DRIVERS if all(driver_supports(one, str(major)) for one in drivers)), default=0)
    wanted = f"CUDA {able} (what the driver {' and '.join(drivers)} runs)" if drivers and able else "a CUDA toolkit"
    here = f"No CUDA toolkit here fits ({'; '.join(passed)})" if passed else "There is no CUDA toolkit on this host"
    remedy = "or set toolchain_cuda_install: true, or toolchain_cuda_root to where it is"
    return None, f"{here}: install {wanted}, {remedy}."


def host_compiler(compiler: Tool, newest: int, which: Which) -> str | None:
    """The C++ compiler that nvcc is told to use: "" for the host's own, a path to an older one; None: there is none.

    :param newest: the newest major version of GCC that the toolkit takes; 0 takes any.
    """
    if not newest or "clang" in compiler.text.lower() or (compiler.version or (0,))[0] <= newest:
        return ""
    for major in range(newest, GCC_MINIMUM[0] - 1, -1):
        path = which(f"g++-{major}")
        if path:
            return path
    return None


def cuda_libraries(root: Path) -> list[str]:
    """The shared libraries of a toolkit that the programs load, under the names that they load them by."""
    found = []
    for folder in (root / "lib64", root / "lib", root / "targets" / "x86_64-linux" / "lib"):
        for name in CUDA_LIBRARIES:
            found += [str(path) for path in folder.glob(f"{name}.*") if path.name[len(name) + 1 :].isdigit()]
        if found:
            break
    return sorted(found)


def driver_stub(root: Path) -> str:
    """What a toolkit has to link with instead of the driver's library; "" where there is none."""
    for folder in ("lib64/stubs", "lib/stubs", "targets/x86_64-linux/lib/stubs", "targets/sbsa-linux/lib/stubs"):
        if (root / folder / "libcuda.so").exists():
            return str(root / folder)
    return ""


def cuda_section(
    toolkits: Sequence[Cuda], targets: Sequence[str], drivers: Sequence[str], compiler: Tool | None, which: Which
) -> tuple[dict[str, Any] | None, str | None]:
    """The toolchain document's section about CUDA, or the sentence why there is none."""
    chosen, reason = choose_cuda(toolkits, targets, drivers)
    if chosen is None:
        return None, reason
    host = host_compiler(compiler, chosen.newest_gcc, which) if compiler else ""
    if host is None:
        return None, (
            f"CUDA {chosen.version} takes GCC up to {chosen.newest_gcc}, and this host has a newer one alone: install "
            f"g++-{chosen.newest_gcc} (toolchain_extra_packages) or a newer toolkit."
        )
    root = Path(chosen.root)
    return {
        "version": chosen.version,
        "root": chosen.root,
        "nvcc": chosen.nvcc,
        "host_compiler": host,
        "stub": driver_stub(root),
        "libraries": cuda_libraries(root),
        "reason": reason,
    }, None


@dataclass(frozen=True)
class Rocm:
    """A ROCm (or a distribution's HIP): its version, where it lies, and where its compiler lies."""

    version: str
    root: str
    compiler: str


def find_rocm(which: Which, run: Run, system: Path = Path("/")) -> Rocm | None:
    """The newest ROCm on a host, or None. What counts is the version of HIP, which CMake checks, too."""
    places = {path.resolve(): path for place in ROCM_PLACES for path in sorted(system.glob(place))}
    on_path = which("hipconfig")
    if on_path:
        places.setdefault(Path(on_path).resolve(), Path(on_path))
    found = []
    for path in places.values():
        answers = [run([str(path), option]) for option in ("--version", "--hipclangpath", "--rocmpath")]
        if answers[0][0] != 0 or not numbers(answers[0][1]):
            continue
        version, compiler, root = (out.strip().splitlines()[-1].strip() if out.strip() else "" for _, out, _ in answers)
        found.append(Rocm(dotted(numbers(version)[:3]), root, f"{compiler}/clang"))
    return max(found, key=lambda one: numbers(one.version), default=None)


def hip_section(rocm: Rocm | None, targets: Sequence[str]) -> tuple[dict[str, Any] | None, str | None]:
    """The toolchain document's section about HIP, or the sentence why there is none."""
    if rocm is None:
        return None, (
            "There is no ROCm on this host (hipconfig was not found): install ROCm "
            f"{dotted(ROCM_MINIMUM)} or newer with rocBLAS and hipBLAS, or set llama_cpp_backend: [vulkan]."
        )
    if numbers(rocm.version) < ROCM_MINIMUM:
        return None, (
            f"ROCm here is {rocm.version}, llama.cpp needs {dotted(ROCM_MINIMUM)}: install a newer one, or set "
            "llama_cpp_backend: [vulkan]."
        )
    return {
        "version": rocm.version,
        "root": rocm.root,
        "environment": {"HIPCXX": rocm.compiler, "HIP_PATH": rocm.root},
        "reason": f"the ROCm that is here, at least {dotted(ROCM_MINIMUM)}, for {', '.join(targets)}",
    }, None


def vulkan_section(which: Which, run: Run) -> tuple[dict[str, Any] | None, str | None]:
    """The toolchain document's section about Vulkan, or the sentence why there is none."""
    path = which("glslc")
    status, out, _err = run([path, "--version"]) if path else (1, "", "")
    if status != 0:
        return None, (
            "There is no shader compiler (glslc) on this host: install glslc, the headers of Vulkan and of SPIR-V, or "
            "let the role do it (system_packages_manage: true)."
        )
    return {"version": dotted(numbers(out)), "reason": f"glslc {dotted(numbers(out))}"}, None


def metal_section(run: Run) -> tuple[dict[str, Any] | None, str | None]:
    """The toolchain document's section about Metal, or the sentence why there is none."""
    status, out, _err = run(["/usr/bin/xcode-select", "--print-path"])
    if status != 0:
        return None, "Xcode's command line tools are not installed on this Mac: run xcode-select --install on it."
    return {"root": out.strip(), "reason": f"the command line tools in {out.strip()}"}, None
