"""What a machine's processors and memory are, and how much of them a service may use. Pure: text in, plain data out.

Sources: ``lscpu`` (util-linux) and its table, ``/proc/cpuinfo`` where there is none, ``/proc/meminfo``, the nodes in
``/sys/devices/system/node``, the process's affinity, and the limits of its control groups; on macOS ``sysctl``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# The instruction sets that ggml has code for: as Linux names them on x86-64, on 64-bit ARM, and as macOS does.
GGML_FLAGS = (
    "avx",
    "avx2",
    "fma",
    "f16c",
    "bmi2",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512_vbmi",
    "avx512_vnni",
    "avx512_bf16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "sha_ni",
    "asimd",
    "asimddp",
    "fphp",
    "i8mm",
    "bf16",
    "sve",
    "sve2",
    "sme",
)
MAC_FLAGS = {
    "FEAT_DotProd": "asimddp",
    "FEAT_I8MM": "i8mm",
    "FEAT_BF16": "bf16",
    "FEAT_FP16": "fphp",
    "FEAT_SME": "sme",
}

# A limit that a control group of version 1 shows when there is none: the largest multiple of a page in 63 bits.
NO_LIMIT_BYTES = 2**62


class TopologyError(Exception):
    """The machine's processors cannot be seen at all; the message says why and what to do."""


@dataclass(frozen=True)
class Cpu:
    """One logical CPU: where it sits. ``llc`` is the number of the last-level cache that it shares."""

    number: int
    core: int
    socket: int
    node: int
    llc: int


def cpu_list(text: str) -> list[int]:
    """The CPUs of a kernel's list such as ``0-3,8``; what is no number is passed over."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        found = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?(?::\S*)?\s*", part)
        if found:
            cpus.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return sorted(cpus)


def fields_of(text: str) -> dict[str, str]:
    """``name: value`` lines, the first of each name; names without their indent."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


def number(text: str | None, default: int = 0) -> int:
    """The first whole number in a text."""
    found = re.search(r"\d+", text or "")
    return int(found[0]) if found else default


def table_cpus(text: str) -> list[Cpu]:
    """The online CPUs of ``lscpu --parse=CPU,CORE,SOCKET,NODE,CACHE``.

    The caches come as ``L1d:L1i:L2:L3`` in one field, or as fields of their own, with an empty one before them; the
    last is the last level. Empty fields (no NUMA, no cache told) are 0.
    """
    cpus = []
    for line in text.splitlines():
        fields = line.strip().split(",")
        if line.startswith("#") or len(fields) < 3 or not fields[0].isdigit():
            continue
        caches = [cache for cache in re.split(r"[:,]", ",".join(fields[4:])) if cache.isdigit()]
        node = number(fields[3]) if len(fields) > 3 else 0
        cpus.append(Cpu(int(fields[0]), number(fields[1]), number(fields[2]), node, int(caches[-1]) if caches else 0))
    return cpus


def cpuinfo_cpus(text: str) -> list[Cpu]:
    """The CPUs of ``/proc/cpuinfo``, for a machine without lscpu. Caches are taken to be one per socket."""
    cpus: list[Cpu] = []
    cores: dict[tuple[int, int], int] = {}
    for block in re.split(r"\n\s*\n", text):
        fields = fields_of(block)
        if not fields.get("processor", "").isdigit():
            continue
        cpu, socket = int(fields["processor"]), number(fields.get("physical id"))
        place = (socket, number(fields.get("core id"), cpu))
        core = cores.setdefault(place, len(cores))
        cpus.append(Cpu(cpu, core, socket, 0, socket))
    return cpus


def quota_cpus(limits: Iterable[str]) -> float | None:
    """The tightest CPU quota of ``cpu.max`` texts (``200000 100000`` is 2.0 CPUs; ``max`` and ``-1`` are none)."""
    quotas = []
    for text in limits:
        found = re.match(r"\s*(\d+)\s+(\d+)", text)
        if found and int(found[1]) > 0 and int(found[2]) > 0:
            quotas.append(int(found[1]) / int(found[2]))
    return round(min(quotas), 3) if quotas else None


def limit_bytes(limits: Iterable[str], total_bytes: int) -> int | None:
    """The tightest memory limit of ``memory.max`` texts; None when none is below what is installed."""
    values = [int(text) for text in limits if text.strip().isdigit()]
    tightest = min((value for value in values if 0 < value < NO_LIMIT_BYTES), default=None)
    return tightest if tightest is not None and tightest < total_bytes else None


def meminfo_bytes(text: str, name: str) -> int:
    """A value of ``/proc/meminfo`` (or of a node's), which counts in KiB."""
    found = re.search(rf"^(?:Node \d+ )?{re.escape(name)}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def groups(cpus: Sequence[Cpu], key: str) -> list[list[int]]:
    """CPU numbers grouped by one of their places, in the order of their first CPU."""
    found: dict[int, list[int]] = {}
    for cpu in sorted(cpus, key=lambda item: item.number):
        found.setdefault(getattr(cpu, key), []).append(cpu.number)
    return list(found.values())


def linux_cpu(
    lscpu: str,
    table: str,
    cpuinfo: str,
    affinity: Sequence[int],
    cpusets: Iterable[str] = (),
    quotas: Iterable[str] = (),
    performance_cpus: str = "",
) -> tuple[dict[str, Any], list[Cpu]]:
    """The ``cpu`` part of a host profile, and the CPUs it was made from.

    :param lscpu: what ``lscpu`` prints; may be empty.
    :param table: what ``lscpu --parse=CPU,CORE,SOCKET,NODE,CACHE`` prints; may be empty.
    :param cpuinfo: ``/proc/cpuinfo``.
    :param affinity: CPUs that the process may run on; empty when unknown.
    :param cpusets: ``cpuset.cpus.effective`` of the control groups that the process is in.
    :param quotas: their ``cpu.max``.
    :param performance_cpus: ``/sys/devices/cpu_core/cpus``, which hybrid Intel processors have.
    :raises TopologyError: when no source names a CPU.
    """
    cpus = table_cpus(table) or cpuinfo_cpus(cpuinfo)
    if not cpus:
        raise TopologyError("Neither lscpu nor /proc/cpuinfo names a CPU: see that /proc is mounted on this host.")
    told, info = fields_of(lscpu), fields_of(cpuinfo)
    usable = {cpu.number for cpu in cpus}
    for allowed in (set(affinity), *(set(cpu_list(text)) for text in cpusets)):
        # A set that shares nothing with the machine's CPUs speaks of other numbers (a container's own): not a limit.
        usable = usable & allowed or usable
    quota = quota_cpus(quotas)
    cores = {(cpu.socket, cpu.core) for cpu in cpus}
    usable_cores = {(cpu.socket, cpu.core) for cpu in cpus if cpu.number in usable}
    most = len(usable_cores) if quota is None else min(len(usable_cores), max(1, int(quota)))
    flags = set((told.get("Flags") or info.get("flags") or info.get("Features") or "").split())
    performance = {(cpu.socket, cpu.core) for cpu in cpus if cpu.number in set(cpu_list(performance_cpus))}
    part = {
        "model": told.get("Model name") or info.get("model name") or info.get("Hardware") or "unknown",
        "vendor": told.get("Vendor ID") or info.get("vendor_id") or "unknown",
        "sockets": len({cpu.socket for cpu in cpus}),
        "physical_cores": len(cores),
        "logical_cpus": len(cpus),
        "threads_per_core": -(-len(cpus) // len(cores)),
        "usable_cpus": sorted(usable),
        "usable_physical_cores": most,
        "quota_cpus": quota,
        "llc_groups": groups(cpus, "llc"),
        "flags": [flag for flag in GGML_FLAGS if flag in flags],
        "performance_cores": len(performance) if 0 < len(performance) < len(cores) else None,
    }
    return part, cpus


def linux_numa(
    cpus: Sequence[Cpu], node_lists: Mapping[int, str], node_meminfo: Mapping[int, str], total_bytes: int
) -> dict[str, Any]:
    """The ``numa`` part: nodes with their CPUs and memory; a node may have memory alone, or CPUs alone.

    :param node_lists: ``cpulist`` of each node in /sys; empty where there is none (some containers): then lscpu's table
        says which CPU is on which node.
    :param node_meminfo: ``meminfo`` of each node.
    :param total_bytes: the machine's memory. A single node has all of it; what /sys says of that node may be less on a
        virtual machine that is given its memory as it asks for it.
    """
    told = {node: cpu_list(text) for node, text in node_lists.items()}
    if not told:
        for cpu in cpus:
            told.setdefault(cpu.node, []).append(cpu.number)
    memory = {node: meminfo_bytes(node_meminfo.get(node, ""), "MemTotal") for node in told}
    if len(told) == 1:
        memory = dict.fromkeys(told, total_bytes)
    return {"nodes": [{"id": node, "cpus": told[node], "memory_bytes": memory[node]} for node in sorted(told)]}


def linux_memory(meminfo: str, limits: Iterable[str]) -> dict[str, Any]:
    """The ``memory`` part.

    :param meminfo: ``/proc/meminfo``.
    :param limits: ``memory.max`` of the control groups that the process is in.
    """
    total = meminfo_bytes(meminfo, "MemTotal")
    limit = limit_bytes(limits, total)
    available = meminfo_bytes(meminfo, "MemAvailable")
    usable = total if limit is None else limit
    return {
        "total_bytes": total,
        "available_bytes": min(available, usable),
        "limit_bytes": limit,
        "usable_bytes": usable,
    }


def mac_parts(sysctl: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The ``cpu``, ``numa`` and ``memory`` parts of a Mac, from ``sysctl hw machdep.cpu``.

    Unified memory: what the GPU may take of it is decided elsewhere.

    :raises TopologyError: when no CPU is named.
    """
    told = fields_of(sysctl)
    cores = number(told.get("hw.physicalcpu"))
    if not cores:
        raise TopologyError("sysctl does not say how many CPUs there are (hw.physicalcpu): is this macOS?")
    logical = number(told.get("hw.logicalcpu"), cores)
    performance = number(told.get("hw.perflevel0.physicalcpu"))
    flags = {"asimd"} | {flag for name, flag in MAC_FLAGS.items() if told.get(f"hw.optional.arm.{name}") == "1"}
    total = number(told.get("hw.memsize"))
    cpus = list(range(logical))
    cpu = {
        "model": told.get("machdep.cpu.brand_string", "unknown"),
        "vendor": "Apple",
        "sockets": number(told.get("hw.packages"), 1),
        "physical_cores": cores,
        "logical_cpus": logical,
        "threads_per_core": -(-logical // cores),
        "usable_cpus": cpus,
        "usable_physical_cores": cores,
        "quota_cpus": None,
        "llc_groups": [cpus],
        "flags": [flag for flag in GGML_FLAGS if flag in flags],
        "performance_cores": performance if 0 < performance < cores else None,
    }
    memory = {"total_bytes": total, "available_bytes": total, "limit_bytes": None, "usable_bytes": total}
    return cpu, {"nodes": [{"id": 0, "cpus": cpus, "memory_bytes": total}]}, memory
