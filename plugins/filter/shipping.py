"""Who compiles for whom, as filters on the hosts' choices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from ansible_collections.llamarack.core.plugins.module_utils import shipping


def plain(value: Any) -> Any:
    """A copy in ordinary containers: Ansible's own resolve templates when they are read, and cannot be copied."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def needs(hostvars: Mapping[str, Any], hosts: Iterable[str]) -> dict[str, shipping.Need]:
    """What hosts chose (facts of the module llama_cpp_choice) and have by now; hosts without a choice are left out."""
    result = {}
    for name in hosts:
        choice = hostvars[name].get("ansible_facts", {}).get("llamarack_build_choice")
        if not choice:
            continue
        choice = plain(choice)
        result[name] = shipping.Need(
            recipe_id=choice["recipe_id"],
            recipe=choice["recipe"],
            system=choice["system"],
            architecture=choice["architecture"],
            release=plain(hostvars[name].get("__llama_cpp_installed")) or None,
            made=tuple(plain(hostvars[name].get("__llama_cpp_compiled") or [])),
            drivers=tuple(choice["drivers"]),
            compiler=choice["compiler"],
            builder=choice["builder"],
            pins=tuple(str(pin) for pin in choice["pins"]),
        )
    return result


def build_jobs(hostvars: Mapping[str, Any], hosts: Iterable[str], shelf: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Host → the compilations that it does: recipe, hosts that they are for, drivers that they must suit."""
    found = shipping.jobs(needs(hostvars, hosts), plain(shelf))
    return {name: [asdict(job) for job in work] for name, work in found.items()}


def build_deliveries(
    hostvars: Mapping[str, Any], hosts: Iterable[str], shelf: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """Host → its delivery: the build's document and the host that has it ("" for the control node)."""
    found = shipping.deliveries(needs(hostvars, hosts), plain(shelf))
    return {name: asdict(one) for name, one in found.items()}


def build_packers(
    hostvars: Mapping[str, Any], hosts: Iterable[str], shelf: Iterable[Mapping[str, Any]]
) -> dict[str, list[Any]]:
    """Host → the documents of the builds that it packs for others."""
    return shipping.packers(shipping.deliveries(needs(hostvars, hosts), plain(shelf)))


def build_cache_pairs(instances: Mapping[str, Any]) -> list[str]:
    """The pairs of K and V cache types that the owner's instances ask for, by policy or pin: ``q8_0-q8_0``."""
    pairs = set()
    for instance in instances.values():
        policy = instance.get("policy") or {}
        asked = {**policy, **(policy.get("pins") or {})}
        key, value = asked.get("cache_type_k"), asked.get("cache_type_v")
        if key or value:
            pairs.add(f"{key or value}-{value or key}")
    return sorted(pairs)


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """The filters by name."""
        return {
            "build_jobs": build_jobs,
            "build_deliveries": build_deliveries,
            "build_packers": build_packers,
            "build_cache_pairs": build_cache_pairs,
        }
