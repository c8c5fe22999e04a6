"""How a llama.cpp is built: its name, its CMake line, its tools, and what a failed build means.

Pure: a module gives it the text that programs printed and takes back names, arguments and sentences.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

# What is built and shipped; nothing else in the tree is compiled.
PROGRAMS = ("llama-server", "llama-bench", "llama-gguf-split", "llama-fit-params", "ggml-rpc-server")

# What computes. The CPU is in every build.
BACKENDS = ("cpu", "cuda", "hip", "metal", "vulkan")

# Pairs of K and V cache types that upstream compiles FlashAttention for when it is not told otherwise
# (ggml/CMakeLists.txt, GGML_CUDA_FA_QUANTS).
PLAIN_PAIRS = ("bf16-bf16", "f16-f16", "q4_0-q4_0", "q8_0-q8_0")

# Memory of one compiler at its worst: a C++ file of the server takes up to 1.6 GiB in GCC 12, a GPU file
# several times a CPU file's. The rest is for the machine's other work.
BYTES_PER_JOB = 2 * 1024**3
BYTES_PER_GPU_JOB = 4 * 1024**3

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


def pinned_source(source: Mapping[str, Any]) -> dict[str, str]:
    """What of the owner's ``llama_cpp_source`` pins the tree, wherever it comes from."""
    pins = {key: source.get(key) for key in ("kind", "sha256", "commit", "subdirectory")}
    return {key: str(value) for key, value in pins.items() if value}


def system_of(os_release: str) -> str:
    """Distribution and version from the text of ``/etc/os-release``: ``debian 12``, ``ubuntu 24.04``."""
    values = dict(line.split("=", 1) for line in os_release.splitlines() if "=" in line)
    words = [values.get(key, "").strip('"') for key in ("ID", "VERSION_ID", "VERSION_CODENAME")]
    return " ".join([words[0] or "linux", words[1] or words[2]]).strip()


@dataclass(frozen=True)
class Recipe:
    """What a build is made of, but for the compiler: hosts that ask for the same can share one build.

    :param source: kind and digest or commit of the tree.
    :param system: distribution and its version, for example ``debian 12``: the libraries that programs find there.
    :param backends: of :data:`BACKENDS`; the CPU computes in every build and is named where it does so alone.
    :param targets: GPUs that code is made for: ``89`` (CUDA), ``gfx1100`` (HIP).
    :param native: use every instruction of the CPU that compiles; False makes a build that may travel.
    :param cpu: what :func:`shaping_cpu` returns; empty unless ``native``.
    :param cache_pairs: K and V cache types (``q8_0-q8_0``) that FlashAttention is compiled for; ``all`` for every one.
    :param options: the owner's CMake options, merged last.
    """

    source: Mapping[str, str]
    build_number: int
    commit: str
    system: str
    architecture: str
    backends: tuple[str, ...] = ("cpu",)
    targets: tuple[str, ...] = ()
    native: bool = True
    cpu: str = ""
    cache_pairs: tuple[str, ...] = ("all",)
    web_ui: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def recipe_id(self) -> str:
        """Twelve digits that are the same for the same recipe."""
        return _digest({**self.document(), "programs": PROGRAMS}, 12)

    @property
    def gpu_backends(self) -> tuple[str, ...]:
        """The backends beside the CPU."""
        return tuple(name for name in self.backends if name != "cpu")

    @property
    def loads_backends(self) -> bool:
        """Whether backends are libraries that are loaded at the start, each where its hardware is."""
        return len(self.gpu_backends) > 1 or not self.native

    def document(self) -> dict[str, Any]:
        """As JSON; :func:`recipe_of` reads it."""
        return {
            **asdict(self),
            "source": dict(self.source),
            "backends": sorted(self.backends),
            "targets": sorted(self.targets),
            "cache_pairs": sorted(self.cache_pairs),
            "options": {name: _cmake_value(value) for name, value in sorted(self.options.items())},
        }


def recipe_of(document: Mapping[str, Any]) -> Recipe:
    """The recipe that a document describes."""
    values = {name: document[name] for name in Recipe.__dataclass_fields__}
    for name in ("backends", "targets", "cache_pairs"):
        values[name] = tuple(values[name])
    return Recipe(**values)


@dataclass(frozen=True)
class Build:
    """A recipe and what compiles it. Two equal builds have the same ``build_id``; any difference gives another.

    :param toolchain: the toolchain document of the host that compiles.
    :param tree_options: names of the CMake options that the source tree knows (:func:`tree_options`).
    """

    recipe: Recipe
    toolchain: Mapping[str, Any]
    tree_options: frozenset[str]

    @property
    def compiler(self) -> str:
        """The first line of ``c++ --version``."""
        return str(self.toolchain["compiler"])

    @property
    def toolkits(self) -> dict[str, str]:
        """Versions of the GPU toolkits that take part."""
        sections = {name: self.toolchain.get(name) for name in self.recipe.gpu_backends}
        return {name: str(section["version"]) for name, section in sections.items() if section and "version" in section}

    @property
    def build_id(self) -> str:
        """The release's name: version, backends, targets, and eight digits of the hash of everything else."""
        recipe = self.recipe
        # The owner's options count as CMake is told them: what says nothing new changes nothing.
        shape = [{**recipe.document(), "options": {}}, cmake_options(self), PROGRAMS, self.compiler, self.toolkits]
        targets = sorted(recipe.targets) if len(recipe.targets) < 4 else [f"{len(recipe.targets)}targets"]
        parts = [f"b{recipe.build_number}", *sorted(recipe.backends), *targets, *(["native"] if recipe.native else [])]
        return "-".join([*parts, _digest(shape, 8)])

    def document(self) -> dict[str, Any]:
        """The build document's body, as far as it is known before the binaries exist."""
        recipe = self.recipe
        return {
            "build_id": self.build_id,
            "recipe_id": recipe.recipe_id,
            "version": f"b{recipe.build_number}",
            "build_number": recipe.build_number,
            "commit": recipe.commit,
            "backends": sorted(recipe.backends),
            "targets": sorted(recipe.targets),
            "native": recipe.native,
            "cmake_options": cmake_options(self),
            "compiler": self.compiler,
            "toolkits": self.toolkits,
            "system": recipe.system,
            "architecture": recipe.architecture,
            "source": dict(recipe.source),
        }


def _digest(value: Any, digits: int) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:digits]


def _cmake_value(value: Any) -> str:
    """A value as CMake spells it."""
    if isinstance(value, bool):
        return "ON" if value else "OFF"
    return str(value)


def tree_options(ggml_cmakelists: str) -> frozenset[str]:
    """The options that a source tree knows, from the text of its ``ggml/CMakeLists.txt``."""
    return frozenset(re.findall(r"^\s*(?:option|set)\s*\(\s*(GGML_\w+)", ggml_cmakelists, re.MULTILINE))


def flash_attention_options(build: Build) -> dict[str, str]:
    """What makes FlashAttention know the wanted pairs of cache types, in the spelling of the tree.

    ``GGML_CUDA_FA_QUANTS`` takes a list or ``all``; before it there was a switch for all or upstream's few.

    :raises BuildError: when the tree knows neither and more than its few pairs are wanted.
    """
    pairs = build.recipe.cache_pairs
    if "GGML_CUDA_FA_QUANTS" in build.tree_options:
        return {"GGML_CUDA_FA_QUANTS": "all" if "all" in pairs else ";".join(sorted({*pairs, *PLAIN_PAIRS}))}
    if set(pairs) <= set(PLAIN_PAIRS):
        return {}
    if "GGML_CUDA_FA_ALL_QUANTS" in build.tree_options:
        return {"GGML_CUDA_FA_ALL_QUANTS": "ON"}
    raise BuildError(
        "This source tree has no option for FlashAttention on more cache types: set llama_cpp_flash_attention: used, "
        "or pin another source."
    )


def cuda_options(build: Build) -> dict[str, str]:
    """The CUDA backend, for exactly the targets' architectures; never for whatever card is in the machine."""
    options = {
        "GGML_CUDA": "ON",
        "CMAKE_CUDA_ARCHITECTURES": ";".join(f"{target}-real" for target in sorted(_cuda_targets(build.recipe))),
        **flash_attention_options(build),
        # Only a split of single tensors between cards would use it, and then it must be on every host.
        "GGML_CUDA_NCCL": "OFF",
    }
    if not build.toolchain["cuda"]["stub"]:
        # Virtual memory management calls the driver itself, which is not here to be linked to.
        options["GGML_CUDA_NO_VMM"] = "ON"
    return options


def _cuda_targets(recipe: Recipe) -> list[str]:
    targets = [target for target in recipe.targets if not target.startswith("gfx")]
    if not targets:
        raise BuildError("No CUDA target is known: list them in llama_cpp_gpu_targets, for example [89].")
    return targets


def hip_options(build: Build) -> dict[str, str]:
    """The HIP backend, for exactly the targets' architectures."""
    targets = [target for target in build.recipe.targets if target.startswith("gfx")]
    if not targets:
        raise BuildError("No HIP target is known: list them in llama_cpp_gpu_targets, for example [gfx1100].")
    return {"GGML_HIP": "ON", "GPU_TARGETS": ";".join(sorted(targets)), **flash_attention_options(build)}


def gpu_options(build: Build) -> dict[str, str]:
    """What the backends beside the CPU add.

    :raises BuildError: for a backend that is not known.
    """
    options: dict[str, str] = {}
    for backend in sorted(build.recipe.backends):
        if backend not in BACKENDS:
            raise BuildError(f"llama_cpp_backend {backend} is not known: use auto or some of {', '.join(BACKENDS)}.")
        if backend == "cuda":
            options.update(cuda_options(build))
        elif backend == "hip":
            options.update(hip_options(build))
        elif backend == "vulkan":
            options["GGML_VULKAN"] = "ON"
        elif backend == "metal":
            # The shaders' source goes into the library and is compiled at the first start: no Xcode is needed for it.
            options.update({"GGML_METAL": "ON", "GGML_METAL_EMBED_LIBRARY": "ON"})
    if on_mac(build.recipe) and "metal" not in build.recipe.backends:
        options["GGML_METAL"] = "OFF"  # on by default there
    return options


def on_mac(recipe: Recipe) -> bool:
    """Whether the recipe is for macOS."""
    return recipe.system.startswith("macos")


def cmake_options(build: Build) -> dict[str, str]:
    """The options that shape the binaries, in the order of the command line; the owner's own come last and win.

    :raises BuildError: for a backend that is not known or an option's name that CMake cannot have.
    """
    recipe = build.recipe
    options = {"CMAKE_BUILD_TYPE": "Release", "GGML_NATIVE": _cmake_value(recipe.native)}
    if on_mac(recipe):
        options["CMAKE_OSX_ARCHITECTURES"] = "arm64"
    if recipe.loads_backends:
        options["GGML_BACKEND_DL"] = "ON"
    if recipe.loads_backends and not recipe.native:
        # One library for each generation of CPUs; the best that the machine can run is loaded.
        options["GGML_CPU_ALL_VARIANTS"] = "ON"
    options |= {
        "GGML_RPC": "ON",
        "LLAMA_OPENSSL": "ON",
        "LLAMA_BUILD_TESTS": "OFF",
        "LLAMA_BUILD_EXAMPLES": "OFF",
        "LLAMA_BUILD_APP": "OFF",
        # ON makes the build download the page from the network, in whatever version is there that day.
        "LLAMA_USE_PREBUILT_UI": _cmake_value(recipe.web_ui),
        # An unpacked tree knows neither, a shallow clone counts wrong: without these --version lies.
        "LLAMA_BUILD_NUMBER": str(recipe.build_number),
        "LLAMA_BUILD_COMMIT": recipe.commit[:7],
        # Programs find the libraries beside them, wherever the release lies.
        "CMAKE_INSTALL_RPATH": "@loader_path" if on_mac(recipe) else "$ORIGIN",
        "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
        **gpu_options(build),
    }
    for name, value in sorted(recipe.options.items()):
        if not _OPTION_NAME.fullmatch(name):
            raise BuildError(f"llama_cpp_cmake_options has {name!r}: write the option's bare name, without -D.")
        options[name] = _cmake_value(value)
    return options


def tool_options(build: Build) -> dict[str, str]:
    """Where the tools are. The same tools at another place make the same binaries.

    Both the compiler and the toolkit's root are named: with the compiler alone CMake takes headers and libraries of the
    toolkit that is first on PATH.
    """
    options = {}
    ninja = build.toolchain["programs"].get("ninja")
    if ninja:
        options["CMAKE_MAKE_PROGRAM"] = str(ninja)
    cuda = build.toolchain.get("cuda")
    if "cuda" in build.recipe.backends and cuda:
        options |= {"CUDAToolkit_ROOT": cuda["root"], "CMAKE_CUDA_COMPILER": cuda["nvcc"]}
        if cuda["host_compiler"]:
            options["CMAKE_CUDA_HOST_COMPILER"] = cuda["host_compiler"]
    return options


def configure_argv(build: Build, source: str, directory: str, ccache: bool) -> list[str]:
    """The command that configures. Whether a compiler cache is used does not shape the binaries."""
    options = {**cmake_options(build), **tool_options(build), "GGML_CCACHE": _cmake_value(ccache)}
    definitions = [f"-D{name}={value}" for name, value in options.items()]
    return [build.toolchain["programs"]["cmake"], "-S", source, "-B", directory, "-G", "Ninja", *definitions]


def compile_argv(build: Build, directory: str, jobs: int) -> list[str]:
    """The command that compiles what is missing. The lock makes a second run wait for one that is still at it."""
    lock = ["lockf", "-k", f"{directory}/.lock"] if on_mac(build.recipe) else ["flock", directory]
    cmake = build.toolchain["programs"]["cmake"]
    return [*lock, cmake, "--build", directory, "--parallel", str(jobs), "--target", *PROGRAMS]


def as_user(user: str, on_mac: bool) -> list[str]:
    """What goes before a command so that it runs as the unprivileged user."""
    return ["sudo", "-n", "-u", user, "--"] if on_mac else ["runuser", "-u", user, "--"]


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


def compile_jobs(wanted: int, cpus: float, memory_bytes: int, on_gpu: bool = False) -> int:
    """How many compilers run at once: what the owner wants, else one per CPU as far as memory carries them.

    :param wanted: the owner's number; 0 leaves it to this function.
    :param cpus: usable CPUs; a quota may make it a fraction.
    :param memory_bytes: usable memory.
    :param on_gpu: whether code for a GPU is compiled, which takes more.
    """
    if wanted > 0:
        return wanted
    return max(1, min(int(cpus), memory_bytes // (BYTES_PER_GPU_JOB if on_gpu else BYTES_PER_JOB)))


def last_lines(text: str, count: int = OUTPUT_LINES) -> str:
    """The end of a program's output, without empty lines."""
    return "\n".join([line.rstrip() for line in text.splitlines() if line.strip()][-count:])


def build_failure(output: str, return_code: int, jobs: int) -> str:
    """What a failed configure or compile means, in one sentence, and the end of its output."""
    again = "the next run goes on where this one stopped"
    old = re.search(r"CMake (\S+) or higher is required.*?running version (\S+)", output, re.DOTALL)
    alien = re.search(r"Unsupported gpu architecture '\w*?_(\w+)'|unsupported HIP gpu architecture: (\w+)", output)
    if "No space left on device" in output:
        sentence = (
            "The disk filled up while llama.cpp was being compiled: make room (1 GB is enough for the CPU, 4 GB for a "
            f"GPU); {again}."
        )
    elif return_code in (137, -9) or re.search(
        r"\bKilled\b|out of memory|[Cc]annot allocate memory|virtual memory exhausted|Error 137|due to signal 9", output
    ):
        sentence = (
            f"The compiler was killed, most likely for want of memory with {jobs} at once: "
            f"set llama_cpp_jobs: {max(1, jobs // 2)}; {again}."
        )
    elif old:
        sentence = f"CMake here is {old[2].rstrip('.')}, this llama.cpp needs {old[1]}: install a newer one."
    elif alien:
        sentence = (
            f"This compiler makes no code for the GPU architecture {alien[1] or alien[2]}: the card needs another "
            "toolkit, or llama_cpp_gpu_targets names one that does not exist."
        )
    elif "unsupported GNU version" in output:
        sentence = (
            "The CUDA toolkit does not take this host's g++: install an older one that it takes (docs/backends.md), "
            "or a newer toolkit."
        )
    elif re.search(r"No CMAKE_\w+_COMPILER could be found|is not a full path to an existing compiler", output):
        sentence = "CMake found no C++ compiler on this host: install g++."
    else:
        sentence = f"llama.cpp did not compile (status {return_code}): its output names the cause; {again}."
    tail = last_lines(output)
    return f"{sentence}\n{tail}" if tail else sentence
