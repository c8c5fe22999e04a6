"""How a llama.cpp is built: its name, its CMake line, its tools, and what a failed build means.

Pure but for the digest of a file: a module gives it the text that programs printed and takes back names, arguments and
sentences.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# What is built and shipped; nothing else in the tree is compiled.
TARGETS = ("llama-server", "llama-bench", "llama-gguf-split", "llama-fit-params", "ggml-rpc-server")

# What each backend adds to the CMake line.
BACKEND_OPTIONS: dict[str, dict[str, str]] = {"cpu": {}}

# The tree itself says 3.14; its asset script and the CUDA backend need 3.18.
CMAKE_MINIMUM = (3, 18)
# The first GCC whose C++17 (std::filesystem included) compiles the tree without extra libraries.
GCC_MINIMUM = (9, 0)

# One C++ file of the server takes up to 1.6 GiB in GCC 12; the rest is for the machine's other work.
BYTES_PER_JOB = 2 * 1024**3

# How much of a compiler's output tells the cause.
OUTPUT_LINES = 20

# The instruction sets that -march=native compiles into the result. The kernel's other flags come and go with kernels.
_SHAPING_FLAGS = re.compile(
    r"(avx|amx_|sse|ssse3|fma|f16c|bmi|abm|popcnt|aes|vaes|pclmulqdq|vpclmulqdq|gfni|sha_ni|adx|movbe)\w*$"
)

_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_OPTION_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# The keys that each kind of source must have.
_SOURCE_NEEDS = {
    "pypi": ("package", "version", "sha256"),
    "archive": ("sha256",),
    "git": ("repository", "tag", "commit"),
}


class BuildError(Exception):
    """What was asked for cannot be built; the message says why and what to do."""


def source_id(source: Mapping[str, Any], build_number: int) -> str:
    """The name of a source's directory: the first 16 hex digits of what pins it.

    :param source: the owner's ``llama_cpp_source``; unset keys may be None.
    :param build_number: what the build will call itself; a tag ``b12345`` must agree with it.
    :raises BuildError: when the source is not pinned or contradicts itself.
    """
    kind = source.get("kind")
    if kind not in _SOURCE_NEEDS:
        raise BuildError(f"llama_cpp_source.kind is {kind!r}: it must be one of {', '.join(sorted(_SOURCE_NEEDS))}.")
    missing = [key for key in _SOURCE_NEEDS[kind] if not source.get(key)]
    if missing:
        raise BuildError(f"llama_cpp_source of kind {kind} lacks {' and '.join(missing)}: add it to the inventory.")
    if kind == "archive" and bool(source.get("url")) == bool(source.get("path")):
        raise BuildError("llama_cpp_source of kind archive needs either url or path, and not both.")
    if kind == "git":
        tag = re.fullmatch(r"b(\d+)", source["tag"])
        if tag and int(tag[1]) != build_number:
            raise BuildError(
                f"llama_cpp_source.tag is {source['tag']}, but llama_cpp_build_number is {build_number}: "
                f"set llama_cpp_build_number to {tag[1]}."
            )
        if not _COMMIT.fullmatch(source["commit"]) or len(source["commit"]) != 40:
            raise BuildError("llama_cpp_source.commit must be the commit's 40 hex digits.")
        return str(source["commit"][:16])
    if not _SHA256.fullmatch(source["sha256"]):
        raise BuildError("llama_cpp_source.sha256 must be 64 hex digits (lower case).")
    return str(source["sha256"][:16])


@dataclass(frozen=True)
class Build:
    """Everything that shapes the binaries. Two equal builds have the same ``build_id``; any difference gives another.

    :param source: kind and digest or commit of the tree.
    :param cpu: what :func:`shaping_cpu` returns; empty unless ``native``.
    :param compiler: the first line of ``c++ --version``.
    :param options: the owner's CMake options, merged last.
    """

    source: Mapping[str, str]
    build_number: int
    commit: str
    compiler: str
    architecture: str
    native: bool = True
    cpu: str = ""
    backends: tuple[str, ...] = ("cpu",)
    targets: tuple[str, ...] = ()
    web_ui: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """Upstream's name of the version: ``b`` and the build number."""
        return f"b{self.build_number}"

    @property
    def build_id(self) -> str:
        """The release's name: version, backends, targets, and eight digits of the hash of everything else."""
        shape = {**asdict(self), "backends": sorted(self.backends), "targets": sorted(self.targets)}
        shape["cmake"] = cmake_options(self)
        shape["programs"] = TARGETS
        del shape["options"]
        digest = hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:8]
        parts = [self.version, *sorted(self.backends), *sorted(self.targets), *(["native"] if self.native else [])]
        return "-".join([*parts, digest])

    def document(self) -> dict[str, Any]:
        """The build document's body, as far as it is known before the binaries exist."""
        return {
            "build_id": self.build_id,
            "version": self.version,
            "build_number": self.build_number,
            "commit": self.commit,
            "backends": sorted(self.backends),
            "targets": sorted(self.targets),
            "native": self.native,
            "cmake_options": cmake_options(self),
            "compiler": self.compiler,
            "architecture": self.architecture,
            "source": dict(self.source),
        }


def _cmake_value(value: Any) -> str:
    """A value as CMake spells it."""
    if isinstance(value, bool):
        return "ON" if value else "OFF"
    return str(value)


def cmake_options(build: Build) -> dict[str, str]:
    """The options that shape the binaries, in the order of the command line; the owner's own come last and win.

    :raises BuildError: for a backend that is not known or an option's name that CMake cannot have.
    """
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "GGML_NATIVE": _cmake_value(build.native),
        "GGML_RPC": "ON",
        "LLAMA_OPENSSL": "ON",
        "LLAMA_BUILD_TESTS": "OFF",
        "LLAMA_BUILD_EXAMPLES": "OFF",
        "LLAMA_BUILD_APP": "OFF",
        # ON makes the build download the page from the network, in whatever version is there that day.
        "LLAMA_USE_PREBUILT_UI": _cmake_value(build.web_ui),
        # An unpacked tree knows neither, a shallow clone counts wrong: without these --version lies.
        "LLAMA_BUILD_NUMBER": str(build.build_number),
        "LLAMA_BUILD_COMMIT": build.commit[:7],
        # Programs find the libraries beside them, wherever the release lies.
        "CMAKE_INSTALL_RPATH": "$ORIGIN",
        "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
    }
    for backend in sorted(build.backends):
        if backend not in BACKEND_OPTIONS:
            raise BuildError(f"llama_cpp_backend {backend} is not known: use {', '.join(sorted(BACKEND_OPTIONS))}.")
        options.update(BACKEND_OPTIONS[backend])
    for name, value in sorted(build.options.items()):
        if not _OPTION_NAME.fullmatch(name):
            raise BuildError(f"llama_cpp_cmake_options has {name!r}: write the option's bare name, without -D.")
        options[name] = _cmake_value(value)
    return options


def configure_argv(build: Build, source: str, directory: str, ccache: bool) -> list[str]:
    """The command that configures. Whether a compiler cache is used does not shape the binaries."""
    options = {**cmake_options(build), "GGML_CCACHE": _cmake_value(ccache)}
    definitions = [f"-D{name}={value}" for name, value in options.items()]
    return ["cmake", "-S", source, "-B", directory, "-G", "Ninja", *definitions]


def compile_argv(directory: str, jobs: int) -> list[str]:
    """The command that compiles what is missing. The lock makes a second run wait for one that is still at it."""
    return ["flock", directory, "cmake", "--build", directory, "--parallel", str(jobs), "--target", *TARGETS]


def compiler_environment(root: str, ccache_dir: str) -> dict[str, str]:
    """The environment of configure and compile.

    With the base directory and without hashing the current one, two builds under one root share their objects; hashing
    the compiler's content shares them between machines whose packages were installed at different times.
    """
    return {
        "HOME": f"{root}/build",
        # The cache hashes all four: builds over SSH and on the console share objects only if all are set.
        "LANG": "C",
        "LC_ALL": "C",
        "LC_CTYPE": "C",
        "LC_MESSAGES": "C",
        # A tree without its own .git must not be taken for a part of a repository that lies above it.
        "GIT_CEILING_DIRECTORIES": root,
        "CCACHE_DIR": ccache_dir,
        "CCACHE_BASEDIR": root,
        "CCACHE_NOHASHDIR": "true",
        "CCACHE_COMPILERCHECK": "content",
    }


def shaping_cpu(cpuinfo: str) -> str:
    """The part of ``/proc/cpuinfo`` that ``-march=native`` depends on: vendor, family, model and instruction sets."""
    values: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        values.setdefault(name.strip(), value.strip())
    identity = [values.get(key, "") for key in ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part")]
    flags = sorted(flag for flag in values.get("flags", "").split() if _SHAPING_FLAGS.match(flag))
    flags += sorted(values.get("Features", "").split())
    return " ".join(word for word in [*identity, *flags] if word)


def compile_jobs(wanted: int, cpus: float, memory_bytes: int) -> int:
    """How many compilers run at once: what the owner wants, else one per CPU as far as memory carries them.

    :param wanted: the owner's number; 0 leaves it to this function.
    :param cpus: usable CPUs; a quota may make it a fraction.
    :param memory_bytes: usable memory.
    """
    if wanted > 0:
        return wanted
    return max(1, min(int(cpus), memory_bytes // BYTES_PER_JOB))


@dataclass(frozen=True)
class Tool:
    """A program of the toolchain, as it introduces itself."""

    name: str
    text: str

    @property
    def version(self) -> tuple[int, ...]:
        """The version's numbers; empty when the program prints none."""
        # Distributions put their package's version in brackets before the compiler's own.
        found = re.search(r"(\d+(?:\.\d+)+)", re.sub(r"\(.*?\)", "", self.text))
        return tuple(int(number) for number in found[1].split(".")) if found else ()


def find_tools(
    which: Callable[[str], str | None],
    run: Callable[[list[str]], tuple[int, str, str]],
    options: Mapping[str, Any] | None = None,
) -> dict[str, Tool | None]:
    """Ask each program of the toolchain for its version; None for one that is not there or does not run.

    :param which: finds a program's path.
    :param run: runs a command and returns its status, output and error output.
    :param options: the owner's CMake options; compilers that they name are asked instead.
    """
    chosen = options or {}
    programs = {
        "cc": str(chosen.get("CMAKE_C_COMPILER", "cc")),
        "c++": str(chosen.get("CMAKE_CXX_COMPILER", "c++")),
        "cmake": "cmake",
        "ninja": "ninja",
        "flock": "flock",
    }
    found: dict[str, Tool | None] = {}
    for name, program in programs.items():
        path = program if program.startswith("/") else which(program)
        status, out, _err = run([path, "--version"]) if path else (1, "", "")
        found[name] = Tool(name, out.partition("\n")[0].strip()) if status == 0 else None
    return found


def toolchain_problem(tools: Mapping[str, Tool | None]) -> str | None:
    """The sentence about the first thing that is missing or too old, or None.

    :param tools: what was found under the names ``cc``, ``c++``, ``cmake``, ``ninja`` and ``flock``.
    """
    what = {
        "cc": "no C compiler",
        "c++": "no C++ compiler",
        "cmake": "no CMake",
        "ninja": "no Ninja",
        "flock": "no flock (util-linux)",
    }
    for name, sentence in what.items():
        if tools.get(name) is None:
            return (
                f"{sentence} on this host: install g++, cmake and ninja, or let the role do it "
                "(system_packages_manage: true)."
            )
    cmake, compiler = tools["cmake"], tools["c++"]
    if cmake and cmake.version < CMAKE_MINIMUM:
        return f"CMake here is {_dotted(cmake.version)}, llama.cpp needs {_dotted(CMAKE_MINIMUM)}: install a newer one."
    if compiler and "clang" not in compiler.text.lower() and compiler.version < GCC_MINIMUM:
        return (
            f"the C++ compiler here is GCC {_dotted(compiler.version)}, llama.cpp needs {_dotted(GCC_MINIMUM)}: "
            "install a newer one."
        )
    return None


def _dotted(version: Sequence[int]) -> str:
    return ".".join(str(number) for number in version)


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def last_lines(text: str, count: int = OUTPUT_LINES) -> str:
    """The end of a program's output, without empty lines."""
    return "\n".join([line.rstrip() for line in text.splitlines() if line.strip()][-count:])


def build_failure(output: str, return_code: int, jobs: int) -> str:
    """What a failed configure or compile means, in one sentence, and the end of its output."""
    again = "the next run goes on where this one stopped"
    old = re.search(r"CMake (\S+) or higher is required.*?running version (\S+)", output, re.DOTALL)
    if "No space left on device" in output:
        sentence = f"The disk filled up while llama.cpp was being compiled: make room (1 GB is enough); {again}."
    elif return_code in (137, -9) or re.search(
        r"\bKilled\b|out of memory|[Cc]annot allocate memory|virtual memory exhausted|Error 137", output
    ):
        sentence = (
            f"The compiler was killed, most likely for want of memory with {jobs} at once: "
            f"set llama_cpp_jobs: {max(1, jobs // 2)}; {again}."
        )
    elif old:
        sentence = f"CMake here is {old[2].rstrip('.')}, this llama.cpp needs {old[1]}: install a newer one."
    elif re.search(r"No CMAKE_\w+_COMPILER could be found|is not a full path to an existing compiler", output):
        sentence = "CMake found no C++ compiler on this host: install g++."
    else:
        sentence = f"llama.cpp did not compile (status {return_code}): its output names the cause; {again}."
    tail = last_lines(output)
    return f"{sentence}\n{tail}" if tail else sentence


def version_problem(output: str, build_number: int, commit: str) -> str | None:
    """Why the output of ``llama-server --version`` is not that of the pinned build, or None.

    Both spellings are known: ``0.5.0 (build 11311, commit 0c1e570)`` and the older ``version: 11311 (0c1e570)``.
    """
    found = re.search(r"build (\d+), commit (\w+)", output) or re.search(r"version: (\d+) \((\w+)\)", output)
    if not found:
        return "llama-server --version names no build number and commit"
    same_commit = commit.startswith(found[2]) or found[2].startswith(commit)
    if int(found[1]) != build_number or not same_commit:
        return f"llama-server says build {found[1]}, commit {found[2]}, but {build_number}, {commit[:7]} was built"
    return None


def listed_devices(output: str) -> list[str] | None:
    """The devices that ``llama-server --list-devices`` prints, or None when it printed no list."""
    _, header, rest = output.partition("Available devices:")
    if not header:
        return None
    lines = [line.strip() for line in rest.splitlines()]
    return [line for line in lines if line and line != "(none)"]


def unresolved_libraries(ldd_output: str) -> list[str]:
    """The libraries that ``ldd`` did not find."""
    return sorted(set(re.findall(r"^\s*(\S+) => not found", ldd_output, re.MULTILINE)))
