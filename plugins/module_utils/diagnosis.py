"""What upstream's messages mean and what to do about them: used by a failed start and by the doctor alike.

The texts are llama.cpp's, the system's and the drivers', as they stand in a log; the tests hold real ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Diagnosis:
    """One thing that is known to be wrong: what it is, what to do, and the line that shows it ("" for an exit code)."""

    name: str
    cause: str
    remedy: str
    evidence: str = ""

    def sentence(self) -> str:
        """Both in one sentence, for a failure message."""
        return f"{self.cause}: {self.remedy}."


@dataclass(frozen=True)
class Known:
    """A message and its meaning; groups of the pattern are put into cause and remedy by name."""

    name: str
    pattern: re.Pattern[str]
    cause: str
    remedy: str


def known(name: str, pattern: str, cause: str, remedy: str) -> Known:
    """A known message."""
    return Known(name, re.compile(pattern), cause, remedy)


# The more telling first: the first that matches is the first to be told.
MESSAGES: tuple[Known, ...] = (
    known(
        "unknown_argument",
        r"error: invalid argument: (?P<what>\S+)",
        "this llama-server does not know {what} (options are renamed and removed between its releases)",
        "run playbooks/serve.yml again, so that the flags are rendered for the build that is installed",
    ),
    known(
        "key_file_unreadable",
        r'while handling argument "--api-key-file": error: failed to open file \'(?P<what>[^\']+)\'',
        "the service cannot read its API key file {what}",
        "see that the file is there and readable by the user of the service, or run site.yml to write it anew",
    ),
    known(
        "wrong_argument_value",
        r'error while handling argument "(?P<what>[^"]+)": (?P<why>.+)',
        "llama-server refuses the value of {what} ({why})",
        "correct the pin or policy that it comes from and run site.yml again",
    ),
    known(
        "unknown_architecture",
        r"unknown model architecture: '(?P<what>[^']*)'",
        "this build of llama.cpp is too old for the model: it does not know the architecture {what}",
        "pin a newer llama.cpp (llama_cpp_source, llama_cpp_commit) and run site.yml again",
    ),
    known(
        "unknown_tokenizer",
        r"unknown (?:pre-tokenizer type|tokenizer): '(?P<what>[^']*)'",
        "this build of llama.cpp is too old for the model: it does not know the tokenizer {what}",
        "pin a newer llama.cpp (llama_cpp_source, llama_cpp_commit) and run site.yml again",
    ),
    known(
        "unknown_tensor_type",
        r"has invalid ggml type (?P<what>\d+)",
        "the model holds tensors of type {what}, which this build cannot read (a newer type, or one of a fork's)",
        "choose a quant made for llama.cpp itself, or pin a newer build",
    ),
    known(
        "wrong_magic",
        r"invalid magic characters: '(?P<what>[^']*)'|(?:bad|wrong|invalid) magic",
        "the model file is not a GGUF file (a web page, a pointer, or another format was saved in its place)",
        "verify the model (gguf_model_verify: full) so that it is fetched anew",
    ),
    known(
        "missing_split",
        r"failed to load GGUF split from (?P<what>\S+)",
        "a split of the model is missing or unreadable: {what}",
        "run the models step again: a set is served whole or not at all",
    ),
    known(
        "not_first_split",
        r"illegal split file idx: \d+ \(file: (?P<what>[^)]+)\)",
        "{what} is not the first split of its set",
        "point the service at the split that ends in -00001-of-…, which the plan does: run site.yml again",
    ),
    known(
        "stale_split_count",
        r"(?:corrupted model: )?(?P<expected>\d+) tensors expected but (?P<found>\d+) found",
        "the splits do not belong together: the first announces {expected} tensors, the set holds {found}",
        "fetch the whole set of one revision again; if it stays so, the publisher's set is broken: choose another",
    ),
    known(
        "split_count",
        r"invalid split count, given: (?P<found>\d+) splits, but expected (?P<expected>\d+)",
        "the set has {found} splits where its first announces {expected}",
        "run the models step again: a set is served whole or not at all",
    ),
    known(
        "wrong_tensor_count",
        r"wrong number of tensors; expected (?P<expected>\d+), got (?P<found>\d+)",
        "the model holds {expected} tensors, of which this build uses {found}: one is not made for the other",
        "pin a newer llama.cpp, or choose another quant",
    ),
    known(
        "truncated",
        r"data is not within the file bounds",
        "a file of the model is cut short or damaged",
        "verify the model (gguf_model_verify: full) so that the damaged split is fetched anew",
    ),
    known(
        "model_permission",
        r"failed to open (?:GGUF file )?'?(?P<what>[^' ]+)'?:? \(?Permission denied",
        "the user of the service may not read {what}",
        "give it read access to the file and search access to every folder above it (or run the models step again)",
    ),
    known(
        "model_missing",
        r"failed to open (?:GGUF file )?'(?P<what>[^']+)' \(No such file or directory\)",
        "the model file {what} is not there (moved, deleted, or its disk is not mounted)",
        "mount the disk, or run site.yml to fetch the model and plan anew",
    ),
    known(
        "cache_types_differ",
        r"does not support different K \((?P<k>\w+)\) and V \((?P<v>\w+)\) cache types",
        "this model takes one type for the K and V caches, but {k} and {v} were given",
        "set cache_type_k and cache_type_v to the same",
    ),
    known(
        "needs_flash_attention",
        r"quantized V cache (?:requires flash_attn|was requested, but this requires Flash Attention)",
        "a quantised V cache needs flash attention, which is off",
        "take the pin off flash_attention, or set cache_type_v to f16",
    ),
    known(
        "cache_blocks",
        r"(?P<cache>[KV]) cache type (?P<kind>\w+) with block size \d+ does not divide n_embd_head_[kv]=(?P<heads>\d+)",
        "the {cache} cache cannot be of type {kind} for this model, whose heads have {heads} elements",
        "set its cache type to f16",
    ),
    known(
        "port_in_use",
        r"couldn't bind HTTP server socket, hostname: (?P<host>[^,\n]+), port: (?P<port>\d+)",
        "the address {host}:{port} is taken by another program, or is not one of this host's",
        "stop the other program (ss -ltnp shows it), or give the instance another port or host",
    ),
    known(
        "cuda_no_kernel",
        r"no kernel image is available for execution",
        "the build was made for another generation of GPU than this host's",
        "build for the compute capability of this host's cards",
    ),
    known(
        "cuda_driver_too_old",
        r"CUDA driver version is insufficient for CUDA runtime version",
        "the NVIDIA driver is older than the CUDA toolkit that the build was made with",
        "update the driver, or build with an older toolkit",
    ),
    known(
        "cuda_no_device",
        r"failed to initialize CUDA: (?P<why>.+)|no CUDA-capable device is detected",
        "CUDA found no usable GPU",
        "see that nvidia-smi works as the user of the service and that the module nvidia_uvm is loaded",
    ),
    known(
        "gpu_memory",
        r"CUDA error: out of memory|cudaMalloc failed: out of memory|allocating [\d.]+ MiB on device \d+",
        "the memory of the GPU does not suffice",
        "place less on the GPU, take a smaller context, or stop what else uses the card (nvidia-smi shows it)",
    ),
    known(
        "shared_library",
        r"error while loading shared libraries: (?P<what>[^:]+):",
        "the shared library {what} is not found",
        "install the package that brings it, or build again on this host: libraries lie beside the binary",
    ),
    known(
        "glibc_too_old",
        r"version [`'](?P<what>GLIBC(?:XX)?_[\d.]+)' not found",
        "the build was made on a newer system: it needs {what}",
        "build on this host, or on one with the same distribution",
    ),
    known(
        "illegal_instruction",
        r"[Ii]llegal instruction|SIGILL",
        "the build uses instructions that this CPU does not have: it was made on another",
        "build on this host, or without native instructions (llama_cpp_native: false)",
    ),
    known(
        "kv_cache_memory",
        r"failed to allocate buffer for (?:kv|rs) cache",
        "there is not enough memory for the KV cache",
        "take a smaller context or a smaller cache type, or raise the memory limit of the service",
    ),
    known(
        "out_of_memory",
        r"ggml_aligned_malloc: insufficient memory|std::bad_alloc|failed to allocate (?:\S+ )?buffer of size|"
        r"failed to allocate compute|[Oo]ut of memory: Killed process|oom-kill|Cannot allocate memory$",
        "there is not enough memory",
        "take a smaller context or quant, stop what else uses the memory, or raise the memory limit of the service",
    ),
    known(
        "mlock_failed",
        r"failed to mlock (?P<what>\d+)-byte buffer",
        "the weights could not be locked in memory, so that they may be swapped out (a warning: the server goes on)",
        "allow it in the service (LimitMEMLOCK=infinity), or take the pin off load_mode",
    ),
    known(
        "context_failed",
        r"failed to create[ _](?:llama_)?context",
        "the model was loaded, but its context could not be made",
        "read the line before this one in the log: it says what was refused",
    ),
    known(
        "model_failed",
        r"error loading model: (?P<why>.+)",
        "the model could not be loaded ({why})",
        "verify the model (gguf_model_verify: full); if it is whole, pin a newer llama.cpp",
    ),
)

# Told only when nothing else was.
GENERAL = frozenset({"context_failed", "model_failed"})
# A warning, which does not end the server.
WARNINGS = frozenset({"mlock_failed"})

SIGNALS: dict[int, tuple[str, str, str]] = {
    4: (
        "illegal_instruction",
        "the server was ended by SIGILL: the build uses instructions that this CPU does not have",
        "build on this host, or without native instructions (llama_cpp_native: false)",
    ),
    6: (
        "aborted",
        "the server gave up by itself (SIGABRT): a failed allocation, or a fault in llama.cpp",
        "read the last lines of the log; if they speak of memory, take a smaller context",
    ),
    9: (
        "out_of_memory",
        "the server was killed (SIGKILL), most likely by the kernel for want of memory",
        "see dmesg or the cgroup's memory.events; take a smaller context or quant, or raise the memory limit",
    ),
    11: (
        "crashed",
        "the server crashed (SIGSEGV): a fault in llama.cpp or a driver, or damaged memory",
        "roll back to the build before, and verify the model (gguf_model_verify: full)",
    ),
}


def diagnose(log_text: str, exit_status: int | None = None, signal: int | None = None) -> list[Diagnosis]:
    """What is known to be wrong, the most telling first; empty when nothing is recognised.

    :param exit_status: of the process, as a shell tells it (128 + signal for one that was killed).
    :param signal: that ended the process, when known.
    """
    found: list[Diagnosis] = []
    for message in MESSAGES:
        matches = list(message.pattern.finditer(log_text))
        if not matches or any(item.name == message.name for item in found):
            continue
        if message.name in GENERAL and any(item.name not in WARNINGS for item in found):
            continue
        # The last: a log may hold an earlier start, too.
        match = matches[-1]
        words = {name: str(value or "").strip() for name, value in match.groupdict().items()}
        found.append(
            Diagnosis(
                message.name,
                message.cause.format(**words),
                message.remedy.format(**words),
                line_at(log_text, match.start()),
            )
        )
    if signal is None and exit_status is not None:
        # A supervisor gives the signal as a negative number, a shell as 128 and the signal.
        signal = -exit_status if exit_status < 0 else exit_status - 128 if exit_status > 128 else None
    if signal in SIGNALS and not any(item.name not in WARNINGS for item in found):
        name, cause, remedy = SIGNALS[signal]
        found.insert(0, Diagnosis(name, cause, remedy))
    if exit_status == 127 and not found:
        found.append(
            Diagnosis("not_found", "the program llama-server is not there", "run the build step to install it")
        )
    return found


def line_at(log_text: str, position: int) -> str:
    """The line of a text that holds a position."""
    start = log_text.rfind("\n", 0, position) + 1
    end = log_text.find("\n", position)
    return log_text[start : end if end >= 0 else len(log_text)].strip()
