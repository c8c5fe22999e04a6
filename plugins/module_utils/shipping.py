"""Who compiles for whom. Pure: what each host wants and has in, jobs and deliveries out.

A build is compiled once for all hosts that want the same recipe: by one of the group ``builders``, else by one of them.
What another host or the control node has is not compiled at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.llamarack.core.plugins.module_utils import toolkits


@dataclass(frozen=True)
class Need:
    """What one host wants, has and can.

    :param recipe: the recipe's document; empty where nothing is to be compiled for this host.
    :param release: the build document of an installed release with this recipe, None where there is none.
    :param made: documents of builds that this host compiled for others.
    :param drivers: versions of its NVIDIA driver (none without a card).
    :param compiler: whether a compiler is there already.
    :param builder: whether it is of the group ``builders``.
    :param pins: source, build number and commit that it would compile.
    """

    recipe_id: str
    recipe: Mapping[str, Any]
    system: str
    architecture: str
    release: Mapping[str, Any] | None = None
    made: tuple[Mapping[str, Any], ...] = ()
    drivers: tuple[str, ...] = ()
    compiler: bool = False
    builder: bool = False
    pins: tuple[Any, ...] = ()

    @property
    def waits(self) -> bool:
        """Whether it wants a build that it does not have."""
        return bool(self.recipe) and self.release is None


@dataclass(frozen=True)
class Job:
    """One compilation: the recipe, the hosts that it is for, and the drivers that its toolkit must suit."""

    recipe: Mapping[str, Any]
    hosts: tuple[str, ...]
    drivers: tuple[str, ...]


@dataclass(frozen=True)
class Delivery:
    """Where a host gets its build: from another host, or from the control node (``source`` is empty)."""

    build: Mapping[str, Any]
    source: str


def suits(build: Mapping[str, Any], need: Need) -> bool:
    """Whether a host can run a build of its recipe: its drivers are recent enough for the build's toolkit."""
    cuda = (build.get("toolkits") or {}).get("cuda")
    return not cuda or all(toolkits.driver_supports(driver, cuda) for driver in need.drivers)


def offers(needs: Mapping[str, Need], shelf: Iterable[Mapping[str, Any]]) -> list[Delivery]:
    """Every build that could be delivered: first what is packed on the control node, then what hosts have."""
    found = [Delivery(build, "") for build in shelf]
    for name, need in sorted(needs.items()):
        found += [Delivery(build, name) for build in (*need.made, *([need.release] if need.release else []))]
    return found


def deliveries(needs: Mapping[str, Need], shelf: Iterable[Mapping[str, Any]]) -> dict[str, Delivery]:
    """For each host that waits for a build that exists: where it comes from."""
    found = offers(needs, shelf)
    result = {}
    for name, need in needs.items():
        if not need.waits:
            continue
        suitable = [one for one in found if one.build["recipe_id"] == need.recipe_id and suits(one.build, need)]
        if suitable:
            result[name] = suitable[0]
    return result


def jobs(needs: Mapping[str, Need], shelf: Iterable[Mapping[str, Any]]) -> dict[str, list[Job]]:
    """What each host compiles; hosts without work are left out."""
    served = deliveries(needs, shelf)
    waiting: dict[str, list[str]] = {}
    for name, need in sorted(needs.items()):
        if need.waits and name not in served:
            waiting.setdefault(need.recipe_id, []).append(name)
    result: dict[str, list[Job]] = {}
    for hosts in waiting.values():
        builder = elect(hosts, needs, result)
        drivers = sorted({driver for host in hosts for driver in needs[host].drivers})
        result.setdefault(builder, []).append(Job(needs[hosts[0]].recipe, tuple(hosts), tuple(drivers)))
    return result


def elect(hosts: Sequence[str], needs: Mapping[str, Need], busy: Mapping[str, Sequence[Job]]) -> str:
    """The host that compiles for some: a builder of their kind, else one of them that has a compiler, else the first.

    A build for one CPU (native) is compiled by one of its own.
    """
    first = needs[hosts[0]]
    builders = [
        name
        for name, need in sorted(needs.items())
        if need.builder
        and (need.system, need.architecture, need.pins) == (first.system, first.architecture, first.pins)
        and (not first.recipe["native"] or name in hosts)
    ]
    if builders:
        return min(builders, key=lambda name: len(busy.get(name, ())))
    return min(hosts, key=lambda name: not needs[name].compiler)


def packers(found: Mapping[str, Delivery]) -> dict[str, list[Mapping[str, Any]]]:
    """For each host that others get builds from: the documents of these builds."""
    result: dict[str, list[Mapping[str, Any]]] = {}
    for delivery in found.values():
        builds = result.setdefault(delivery.source, []) if delivery.source else []
        if delivery.build not in builds:
            builds.append(delivery.build)
    return result
