#!/usr/bin/python
"""See what a machine is, in one call, and write it down."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llamarack.core.plugins.module_utils import accelerators, documents, storage, topology

DOCUMENTATION = r"""
module: host_profile
short_description: See what a machine is
description:
  - Looks at processors (sockets, NUMA nodes, cores, caches, instruction sets), memory, GPUs, mounts and the service
    manager, and at the limits that make less of them usable than is installed.
  - Writes C(host_profile.json) and returns it. What could not be seen is said in C(unseen).
  - Works without root where it can; then it sees less and, with O(write), may be unable to write.
options:
  write:
    description: Whether to write the document; without it the profile is only returned.
    type: bool
    default: true
  state_dir:
    description: Where the documents lie.
    type: path
    default: /var/lib/llamarack
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  facts:
    support: full
author: [Llamarack]
"""

EXAMPLES = r"""
- name: See what the machine is
  llamarack.core.host_profile:
"""

RETURN = r"""
host_profile:
  description: The host profile.
  returned: success
  type: dict
ansible_facts:
  description: The same, as C(llamarack_host_profile).
  returned: success
  type: dict
"""

# What differs from run to run on the same machine.
VOLATILE = frozenset({"available_bytes", "free_bytes", "vram_free_bytes"})

SYS = Path("/sys")
CGROUPS = SYS / "fs/cgroup"
# A driver that hangs must not keep the owner waiting.
TOOL_SECONDS = 30


def text_of(path: Path) -> str:
    """A file's text; empty when it is not there or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


class Tools:
    """Programs of the machine that tell about it."""

    def __init__(self, module: AnsibleModule) -> None:
        """Remember how to run them."""
        self.module = module

    def find(self, name: str, *places: str) -> str | None:
        """A program's path, if it is there."""
        found: str | None = self.module.get_bin_path(name, opt_dirs=list(places))
        return found

    def output(self, name: str, *arguments: str, places: tuple[str, ...] = ()) -> str:
        """What a program prints, errors included; empty when it is not there."""
        program = self.find(name, *places)
        if program is None:
            return ""
        timeout = self.find("timeout")
        command = [*([timeout, str(TOOL_SECONDS)] if timeout else []), program, *arguments]
        _code, out, err = self.module.run_command(command, environ_update={"LC_ALL": "C"})
        return str(out) + str(err)


def control_groups() -> Iterator[tuple[str, Path]]:
    """The directories of the control groups that this process is in, from its own up to the root: controllers, path."""
    for line in text_of(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        for name in controllers.split(",") if controllers else [""]:
            base = CGROUPS / name if name else CGROUPS
            # Inside a container the path may be the host's, which is not there: then the root is the container's own.
            own = base / path.lstrip("/")
            while True:
                if own.is_dir():
                    yield name, own
                if own == base or base not in own.parents:
                    break
                own = own.parent


def limits() -> tuple[list[str], list[str], list[str]]:
    """CPU sets, CPU quotas (as ``cpu.max`` writes them) and memory limits of the control groups."""
    cpusets, quotas, memory = [], [], []
    for controller, directory in control_groups():
        if controller in ("", "cpuset"):
            cpusets.append(text_of(directory / "cpuset.cpus.effective") or text_of(directory / "cpuset.effective_cpus"))
        if controller == "":
            quotas.append(text_of(directory / "cpu.max"))
            memory.append(text_of(directory / "memory.max"))
        if controller == "cpu":
            quota, period = text_of(directory / "cpu.cfs_quota_us"), text_of(directory / "cpu.cfs_period_us")
            quotas.append(f"{quota.strip()} {period.strip()}")
        if controller == "memory":
            memory.append(text_of(directory / "memory.limit_in_bytes"))
    return [text for text in cpusets if text.strip()], quotas, memory


def linux(tools: Tools) -> tuple[dict[str, Any], accelerators.Seen, list[str]]:
    """Processors, NUMA and memory of a Linux machine, its GPUs, and what was not seen."""
    unseen = []
    cpusets, quotas, memory = limits()
    if not tools.find("lscpu"):
        unseen.append("caches and NUMA nodes of the processors: there is no lscpu (util-linux)")
    cpu, cpus = topology.linux_cpu(
        tools.output("lscpu"),
        tools.output("lscpu", "--parse=CPU,CORE,SOCKET,NODE,CACHE"),
        text_of(Path("/proc/cpuinfo")),
        sorted(os.sched_getaffinity(0)),
        cpusets,
        quotas,
        text_of(SYS / "devices/cpu_core/cpus"),
    )
    nodes = sorted(SYS.glob("devices/system/node/node[0-9]*"))
    numbers = {int(node.name[4:]): node for node in nodes}
    ram = topology.linux_memory(text_of(Path("/proc/meminfo")), memory)
    numa = topology.linux_numa(
        cpus,
        {number: text_of(node / "cpulist") for number, node in numbers.items()},
        {number: text_of(node / "meminfo") for number, node in numbers.items()},
        int(ram["total_bytes"]),
    )
    if not nodes:
        unseen.append("memory of the NUMA nodes: /sys/devices/system/node is not there")
    return {"cpu": cpu, "numa": numa, "memory": ram}, linux_gpus(tools), unseen


def linux_gpus(tools: Tools) -> accelerators.Seen:
    """The GPUs, and those that are on the bus and cannot be asked."""
    seen = []
    if tools.find("nvidia-smi"):
        query = f"--query-gpu={','.join(accelerators.NVIDIA_FIELDS)}"
        seen.append(accelerators.nvidia(tools.output("nvidia-smi", query, "--format=csv,noheader,nounits")))
    rocm = ("/opt/rocm/bin",)
    if tools.find("amd-smi", *rocm):
        static = tools.output("amd-smi", "static", "--json", places=rocm)
        seen.append(accelerators.amd(static, tools.output("amd-smi", "metric", "--mem-usage", "--json", places=rocm)))
    elif tools.find("rocm-smi", *rocm):
        shown = ("--showproductname", "--showmeminfo", "vram", "--showdriverversion", "--showuniqueid", "--json")
        seen.append(accelerators.rocm(tools.output("rocm-smi", *shown, places=rocm)))
    together = accelerators.together(*seen)
    vendors = {gpu.vendor for gpu in together.gpus}
    on_the_bus = accelerators.on_the_bus(
        (text_of(device / "class"), text_of(device / "vendor")) for device in SYS.glob("bus/pci/devices/*")
    )
    missing = tuple(
        f"{count} {vendor} GPU on the PCI bus: no tool of its vendor's sees it (is the driver installed?)"
        for vendor, count in sorted(on_the_bus.items())
        if vendor not in vendors and not together.unseen
    )
    return accelerators.Seen(together.gpus, together.unseen + missing)


def mac(tools: Tools) -> tuple[dict[str, Any], accelerators.Seen, list[str]]:
    """The same of a Mac."""
    cpu, numa, memory = topology.mac_parts(tools.output("sysctl", "hw", "machdep.cpu", places=("/usr/sbin",)))
    profiler = tools.output("system_profiler", "SPDisplaysDataType", "-json", places=("/usr/sbin",))
    gpus = accelerators.metal(profiler, int(memory["total_bytes"]))
    return {"cpu": cpu, "numa": numa, "memory": memory}, gpus, ["mounts: they are read on Linux only, for now"]


def block_device(number: str, source: str) -> Path | None:
    """The directory in /sys of the disk under a mount: through a volume of others, the first of them."""
    device = SYS / "dev/block" / number
    if not device.exists() and source.startswith("/dev/"):
        # Btrfs and others number their mounts by themselves.
        try:
            status = Path(source).stat()
        except OSError:
            return None
        device = SYS / "dev/block" / f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    if not device.exists():
        return None
    device = device.resolve()
    for _depth in range(8):
        parts = sorted((device / "slaves").glob("*"))
        if not parts:
            break
        device = parts[0].resolve()
    return device


def mounts(mountinfo: str) -> list[dict[str, Any]]:
    """The mounts that an owner would think of."""
    found = []
    for mount in storage.parse_mountinfo(mountinfo):
        if not storage.is_of_interest(mount):
            continue
        device = block_device(mount.device_number, mount.source)
        disk = device.parent if device and (device / "partition").exists() else device
        rotates = text_of(disk / "queue/rotational").strip() if disk else ""
        try:
            status = os.statvfs(mount.path)
        except OSError:
            # Gone, or a network that does not answer.
            continue
        read_only = bool(status.f_flag & os.ST_RDONLY)
        found.append(
            {
                "path": mount.path,
                "source": mount.source,
                "fstype": mount.fstype,
                "file_system": mount.device_number,
                "options": [option for option in mount.options if len(option) < 80],
                "device": disk.name if disk else "",
                "transport": storage.transport_of(mount.fstype, str(device or "")),
                "rotational": {"0": False, "1": True}.get(rotates),
                "total_bytes": status.f_blocks * status.f_frsize,
                "free_bytes": status.f_bavail * status.f_frsize,
                "writable": not read_only,
                "is_directory": Path(mount.path).is_dir(),
            }
        )
    return found


def distribution() -> dict[str, str]:
    """What the system calls itself."""
    values = {}
    for line in text_of(Path("/etc/os-release")).splitlines():
        name, _, value = line.partition("=")
        values[name] = value.strip().strip("\"'")
    likes = f"{values.get('ID', '')} {values.get('ID_LIKE', '')}".split()
    family = next((name for name, marks in FAMILIES.items() if marks & set(likes)), "")
    return {
        "id": values.get("ID", platform.system().lower()),
        "version": values.get("VERSION_ID", platform.release()),
        "codename": values.get("VERSION_CODENAME", ""),
        "family": family,
    }


FAMILIES = {
    "debian": {"debian", "ubuntu"},
    "redhat": {"rhel", "fedora", "centos", "rocky", "almalinux"},
    "suse": {"suse", "opensuse", "sles"},
    "arch": {"arch"},
    "alpine": {"alpine"},
}


def service_manager() -> str:
    """What supervises services here."""
    if platform.system() == "Darwin":
        return "launchd"
    return "systemd" if Path("/run/systemd/system").is_dir() else "supervisord"


def profile(module: AnsibleModule) -> dict[str, Any]:
    """The host profile's body."""
    tools = Tools(module)
    is_mac = platform.system() == "Darwin"
    parts, gpus, unseen = mac(tools) if is_mac else linux(tools)
    privileged = os.geteuid() == 0
    if not privileged:
        unseen.append("what only root may see: the profile was taken without it")
    return {
        "hostname": socket.gethostname(),
        "system": platform.system(),
        "distribution": distribution(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        **parts,
        "gpus": [gpu.document() for gpu in gpus.gpus],
        "mounts": [] if is_mac else mounts(text_of(Path("/proc/self/mountinfo"))),
        "service_manager": service_manager(),
        "privileged": privileged,
        "unseen": [*unseen, *gpus.unseen],
    }


def main() -> None:
    """Arguments in, one call, result out."""
    module = AnsibleModule(
        argument_spec={
            "write": {"type": "bool", "default": True},
            "state_dir": {"type": "path", "default": documents.STATE_DIR},
        },
        supports_check_mode=True,
    )
    path = f"{module.params['state_dir']}/host_profile.json"
    changed, diff = False, None
    try:
        body = profile(module)
        if module.params["write"]:
            changed, diff = documents.write_document(path, "host_profile", body, module.check_mode, VOLATILE)
    except topology.TopologyError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(
            msg=f"{path} cannot be written ({error.strerror}): run as root, or see that the disk has room."
        )
    result: dict[str, Any] = {"diff": diff} if diff else {}
    module.exit_json(changed=changed, host_profile=body, ansible_facts={"llamarack_host_profile": body}, **result)


if __name__ == "__main__":
    main()
