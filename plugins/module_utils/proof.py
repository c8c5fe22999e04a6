"""Whether a llama.cpp is the one that was meant, finds its libraries, and computes on the device that it is for.

Pure: a module runs the commands and gives their output; what comes back is the reason why the build is not taken, or
None.
"""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# How --list-devices and llama-bench name a backend's devices, and whose cards the backend is for ("" = any).
DEVICE_NAMES = {
    "cuda": ("CUDA", "NVIDIA"),
    "hip": ("ROCm", "AMD"),
    "metal": ("MTL", "Apple"),
    "vulkan": ("Vulkan", ""),
}

# The shape of the model that the proof computes with: one layer that every backend can hold.
EMBEDDING, FEED_FORWARD, HEADS, VOCABULARY = 256, 512, 4, 64
_F32 = 0
_ALIGNMENT = 32


def version_problem(output: str, build_number: int, commit: str) -> str | None:
    """Why the output of ``llama-server --version`` is not that of the pinned build, or None.

    Both spellings are known: ``0.5.0 (build 11311, commit 0c1e570)`` and the older ``version: 11311 (0c1e570)``.
    """
    found = re.search(r"build (\d+), commit (\w+)", output) or re.search(r"version: (\d+) \((\w+)\)", output)
    if not found:
        return "llama-server --version names no build number and commit"
    same_commit = commit.startswith(found[2]) or found[2].startswith(commit)
    if int(found[1]) != build_number or not same_commit:
        return f"llama-server says build {found[1]}, commit {found[2]}, but {build_number}, {commit[:7]} is pinned"
    return None


def unresolved_libraries(ldd_output: str) -> list[str]:
    """The libraries that ``ldd`` did not find."""
    return sorted(set(re.findall(r"^\s*(\S+) => not found", ldd_output, re.MULTILINE)))


def listed_devices(output: str) -> list[str] | None:
    """The devices that ``llama-server --list-devices`` prints, or None when it printed no list."""
    _, header, rest = output.partition("Available devices:")
    if not header:
        return None
    lines = [line.strip() for line in rest.splitlines()]
    return [line for line in lines if line and line != "(none)"]


def devices_of(backend: str, listed: Iterable[str]) -> list[str]:
    """The names of a backend's devices in the list: ``CUDA0``."""
    name = DEVICE_NAMES[backend][0]
    return [line.partition(":")[0] for line in listed if re.match(rf"{name}\d*:", line)]


def expected_gpus(backend: str, gpus: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names of the host profile's GPUs that a backend is for."""
    vendor = DEVICE_NAMES[backend][1]
    return [str(gpu["name"]) for gpu in gpus if vendor in ("", gpu["vendor"])]


def device_problem(listed: Sequence[str], backends: Iterable[str], gpus: Sequence[Mapping[str, Any]]) -> str | None:
    """Why the listed devices are not the profile's, or None. A build may serve other hosts, with other cards.

    :param listed: what :func:`listed_devices` returned.
    :param backends: of the build.
    :param gpus: of the host profile.
    """
    for backend in backends:
        if backend == "cpu":
            continue
        expected, found = expected_gpus(backend, gpus), devices_of(backend, listed)
        if len(found) < len(expected):
            seen = f"lists {', '.join(listed)}" if listed else "lists no device"
            return (
                f"the host has {len(expected)} GPU{'s' if len(expected) > 1 else ''} for {backend} "
                f"({', '.join(expected)}), but llama-server {seen}: see the driver, and that the build user may open "
                "the device files (groups video and render)"
            )
    return None


def benched_devices(backends: Iterable[str], listed: Sequence[str], gpus: Sequence[Mapping[str, Any]]) -> list[str]:
    """The devices to compute on: the first of each backend that has its hardware here, else the CPU (``""``)."""
    names = []
    for backend in sorted(set(backends) - {"cpu"}):
        found = devices_of(backend, listed)
        if found and expected_gpus(backend, gpus):
            names.append(found[0])
    return names or [""]


def bench_arguments(model: str, device: str) -> list[str]:
    """Arguments of ``llama-bench`` for a second of work.

    :param device: the device's name, or "" for the CPU.
    """
    where = ["-ngl", "99", "-dev", device] if device else ["-ngl", "0"]
    return ["-m", model, "-p", "32", "-n", "8", "-r", "1", "-t", "1", "-o", "json", *where]


def bench_problem(output: str, device: str) -> str | None:
    """Why ``llama-bench -o json`` did not compute on the device, or None.

    :param output: its standard output.
    :param device: the device's name, or "" for the CPU.
    """
    try:
        rows = json.loads(output)
    except ValueError:
        return "llama-bench printed no figures"
    if not isinstance(rows, list) or not rows:
        return "llama-bench printed no figures"
    for row in rows:
        if not float(row.get("avg_ts") or 0) > 0:
            return "llama-bench computed nothing"
        if device and str(row.get("devices")) != device:
            return f"llama-bench computed on {row.get('devices') or 'another device'}, not on {device}"
        backend = re.sub(r"\d+$", "", device)
        if backend and backend not in str(row.get("backends")).split(","):
            return f"llama-bench knows the backends {row.get('backends')}, not {backend}"
    return None


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    """A metadata value with its type: text, 32-bit whole number or 32-bit fraction."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    return struct.pack("<If", 6, value)


def tiny_model() -> bytes:
    """A GGUF (version 3) of one random layer without vocabulary, 3 MB: enough to compute with, nothing to download.

    The layout is that of the GGUF specification in upstream's ``docs/gguf.md``, of the architecture ``llama``.
    """
    metadata = {
        "general.architecture": "llama",
        "general.name": "proof",
        "llama.context_length": 128,
        "llama.embedding_length": EMBEDDING,
        "llama.block_count": 1,
        "llama.feed_forward_length": FEED_FORWARD,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": EMBEDDING // HEADS,
        "llama.vocab_size": VOCABULARY,
        "tokenizer.ggml.model": "no_vocab",
    }
    square, wide, tall = (EMBEDDING, EMBEDDING), (EMBEDDING, FEED_FORWARD), (FEED_FORWARD, EMBEDDING)
    tensors: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (EMBEDDING, VOCABULARY),
        "output_norm.weight": (EMBEDDING,),
        "output.weight": (EMBEDDING, VOCABULARY),
        "blk.0.attn_norm.weight": (EMBEDDING,),
        "blk.0.attn_q.weight": square,
        "blk.0.attn_k.weight": square,
        "blk.0.attn_v.weight": square,
        "blk.0.attn_output.weight": square,
        "blk.0.ffn_norm.weight": (EMBEDDING,),
        "blk.0.ffn_gate.weight": wide,
        "blk.0.ffn_up.weight": wide,
        "blk.0.ffn_down.weight": tall,
    }
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(_string(key) + _value(value) for key, value in metadata.items())
    noise = random.Random(1)
    row = struct.pack(f"<{EMBEDDING}f", *(noise.uniform(-0.1, 0.1) for _ in range(EMBEDDING)))
    data = b""
    for name, shape in tensors.items():
        head += _string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, _F32, len(data))
        count = 1
        for size in shape:
            count *= size
        # Every tensor is a whole number of rows, and so aligned.
        data += row * (count // EMBEDDING)
    return head + b"\0" * (-len(head) % _ALIGNMENT) + data
