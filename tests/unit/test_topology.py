"""What recorded machines are taken for, and that no text breaks the readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llamarack.core.plugins.module_utils import topology
from hypothesis import given
from hypothesis import strategies as st

HOSTS = Path(__file__).resolve().parents[1] / "recorded" / "hosts"
LINUX = sorted(path.parent.name for path in HOSTS.glob("*/meminfo.txt"))


def read(host: str, name: str) -> str:
    """A recorded text; empty where the machine has none."""
    path = HOSTS / host / name
    return path.read_text(encoding="utf-8") if path.exists() else ""


def parts(host: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Processors, NUMA and memory of a recorded machine."""
    if (HOSTS / host / "sysctl.txt").exists():
        return topology.mac_parts(read(host, "sysctl.txt"))
    cpu, cpus = topology.linux_cpu(
        read(host, "lscpu.txt"),
        read(host, "lscpu_parse.txt"),
        read(host, "cpuinfo.txt"),
        topology.cpu_list(read(host, "affinity.txt")),
        [read(host, "cpuset.txt")] if read(host, "cpuset.txt") else [],
        read(host, "cpu.max.txt").splitlines(),
        read(host, "performance_cpus.txt"),
    )
    lists = {int(path.stem[4:]): path.read_text() for path in (HOSTS / host).glob("node*.cpulist")}
    meminfo = {int(path.stem[4:]): path.read_text() for path in (HOSTS / host).glob("node*.meminfo")}
    memory = topology.linux_memory(read(host, "meminfo.txt"), read(host, "memory.max.txt").splitlines())
    return cpu, topology.linux_numa(cpus, lists, meminfo, memory["total_bytes"]), memory


@pytest.mark.parametrize("host", sorted(path.name for path in HOSTS.iterdir() if path.is_dir()))
def test_a_recorded_machine_is_taken_for_what_it_is(host: str) -> None:
    expected = json.loads(read(host, "expected.json"))
    cpu, numa, memory = parts(host)
    for key in ("model", "sockets", "physical_cores", "logical_cpus", "threads_per_core", "usable_physical_cores"):
        assert cpu[key] == expected[key], key
    assert len(cpu["llc_groups"]) == expected["llc_groups"]
    assert cpu["llc_groups"][0] == expected["first_llc_group"]
    assert cpu["quota_cpus"] == expected.get("quota_cpus")
    assert cpu["performance_cores"] == expected.get("performance_cores")
    if "usable_cpus" in expected:
        assert cpu["usable_cpus"] == topology.cpu_list(expected["usable_cpus"])
    assert set(expected["flags_present"]) <= set(cpu["flags"])
    assert not set(expected["flags_absent"]) & set(cpu["flags"])
    assert [(node["cpus"], node["memory_bytes"]) for node in numa["nodes"]] == [
        (topology.cpu_list(node["cpus"]), node["memory_bytes"]) for node in expected["nodes"]
    ]
    assert memory["total_bytes"] == expected["total_bytes"]
    assert memory["usable_bytes"] == expected["usable_bytes"]
    assert 0 < memory["available_bytes"] <= memory["usable_bytes"]


@pytest.mark.parametrize("host", LINUX)
def test_caches_and_nodes_hold_each_cpu_once(host: str) -> None:
    cpu, numa, _memory = parts(host)
    for groups in (cpu["llc_groups"], [node["cpus"] for node in numa["nodes"]]):
        members = [member for group in groups for member in group]
        assert len(members) == len(set(members)) == cpu["logical_cpus"]


def test_the_tightest_limit_of_nested_groups_counts() -> None:
    assert topology.quota_cpus(["max 100000", "800000 100000", "350000 100000"]) == 3.5
    assert topology.quota_cpus(["max 100000", "-1 100000", "", "0 0"]) is None
    assert topology.limit_bytes(["max", "8589934592", "4294967296"], 2**40) == 4294967296
    assert topology.limit_bytes(["9223372036854771712"], 2**40) is None
    assert topology.limit_bytes([str(2**41)], 2**40) is None, "a limit above what is installed is none"


def test_a_quota_below_one_cpu_still_leaves_one_thread() -> None:
    cpu, _cpus = topology.linux_cpu("", "0,0,0,0,,0,0,0,0\n1,1,0,0,,1,1,1,0\n", "", [0, 1], [], ["25000 100000"])
    assert cpu["usable_physical_cores"] == 1
    assert cpu["quota_cpus"] == 0.25


def test_a_cpuset_that_speaks_of_other_numbers_limits_nothing() -> None:
    cpu, _cpus = topology.linux_cpu("", "0,0,0,0,,0,0,0,0\n1,1,0,0,,1,1,1,0\n", "", [0, 1], ["64-65"], [])
    assert cpu["usable_cpus"] == [0, 1]


def test_a_node_with_memory_alone_is_kept() -> None:
    numa = topology.linux_numa([], {0: "0-3", 1: "\n"}, {1: "Node 1 MemTotal:       1024 kB\n"}, 2**30)
    assert numa["nodes"][1] == {"id": 1, "cpus": [], "memory_bytes": 1024 * 1024}


def test_a_single_node_has_all_memory_even_where_it_is_plugged_in_bit_by_bit() -> None:
    numa = topology.linux_numa([], {0: "0-1"}, {0: "Node 0 MemTotal:       1024 kB\n"}, 2**34)
    assert numa["nodes"][0]["memory_bytes"] == 2**34


def test_both_spellings_of_the_table_are_read() -> None:
    old = topology.table_cpus("0,0,0,0,0:0:0:3\n1,1,0,1,1:1:1:4\n")
    new = topology.table_cpus("0,0,0,0,,0,0,0,3\n1,1,0,1,,1,1,1,4\n")
    assert old == new
    assert [cpu.llc for cpu in new] == [3, 4]
    assert topology.table_cpus("0,0,0,,,\n")[0].node == 0


def test_a_machine_that_names_no_cpu_is_told_so() -> None:
    with pytest.raises(topology.TopologyError, match="/proc is mounted"):
        topology.linux_cpu("", "", "", [])
    with pytest.raises(topology.TopologyError, match="is this macOS"):
        topology.mac_parts("hw.memsize: 1")


@given(st.lists(st.integers(0, 4000), unique=True))
def test_a_list_of_cpus_is_read_back(numbers: list[int]) -> None:
    assert topology.cpu_list(",".join(str(number) for number in numbers)) == sorted(numbers)


@given(lscpu=st.text(), table=st.text(), cpuinfo=st.text(), limits=st.lists(st.text()))
def test_no_text_breaks_the_readers(lscpu: str, table: str, cpuinfo: str, limits: list[str]) -> None:
    topology.linux_memory(table, limits)
    topology.cpu_list(table)
    try:
        cpu, cpus = topology.linux_cpu(lscpu, table, cpuinfo, [0, 1], limits, limits, table)
    except topology.TopologyError:
        return
    assert 1 <= cpu["usable_physical_cores"] <= cpu["physical_cores"] <= cpu["logical_cpus"]
    topology.linux_numa(cpus, {}, {}, 1)


@given(
    sockets=st.integers(1, 4),
    cores=st.integers(1, 16),
    threads=st.integers(1, 2),
    allowed=st.sets(st.integers(0, 127)),
    quota=st.none() | st.integers(1_000, 12_800_000),
)
def test_never_more_cores_are_usable_than_there_are_nor_than_are_allowed(
    sockets: int, cores: int, threads: int, allowed: set[int], quota: int | None
) -> None:
    count = sockets * cores
    rows = [
        f"{thread * count + core},{core},{core // cores},{core // cores},,{core},{core},{core},{core // 4}"
        for thread in range(threads)
        for core in range(count)
    ]
    quotas = [] if quota is None else [f"{quota} 100000"]
    cpu, _cpus = topology.linux_cpu("", "\n".join(rows), "", sorted(allowed), [], quotas)
    assert cpu["physical_cores"] == count
    assert cpu["threads_per_core"] == threads
    usable = {number % count for number in cpu["usable_cpus"]}
    assert 1 <= cpu["usable_physical_cores"] <= len(usable)
    if quota is not None and cpu["usable_physical_cores"] > 1:
        assert cpu["usable_physical_cores"] <= quota / 100000
