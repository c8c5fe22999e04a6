"""Who compiles for whom: once for each kind of host, and never what somebody has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.llamarack.core.plugins.filter import shipping as filters
from ansible_collections.llamarack.core.plugins.module_utils import shipping
from ansible_collections.llamarack.core.plugins.module_utils.shipping import Need
from hypothesis import given
from hypothesis import strategies as st


def need(recipe_id: str = "zen4", **change: Any) -> Need:
    """A host that wants a build, with a change."""
    plain: dict[str, Any] = {"system": "debian 12", "architecture": "x86_64", "pins": ("11311",)}
    recipe = {"native": not recipe_id.startswith("any"), "name": recipe_id} if recipe_id else {}
    return Need(**{**plain, "recipe_id": recipe_id, "recipe": recipe, **change})


def build(recipe_id: str = "zen4", **toolkits: str) -> dict[str, Any]:
    """A build of a recipe."""
    return {"build_id": f"b-{recipe_id}", "recipe_id": recipe_id, "toolkits": toolkits}


def test_ten_equal_hosts_compile_once() -> None:
    needs = {f"epyc{number}": need() for number in range(10)}
    jobs = shipping.jobs(needs, [])
    assert list(jobs) == ["epyc0"]
    assert jobs["epyc0"][0].hosts == tuple(sorted(needs))


def test_the_tenth_of_nine_that_have_it_compiles_nothing() -> None:
    needs = {f"epyc{number}": need(release=build()) for number in range(9)} | {"new": need()}
    assert shipping.jobs(needs, []) == {}
    delivery = shipping.deliveries(needs, [])["new"]
    assert delivery.source == "epyc0"
    assert shipping.packers({"new": delivery}) == {"epyc0": [build()]}


def test_what_the_control_node_has_is_neither_compiled_nor_packed() -> None:
    needs = {"old": need(release=build()), "new": need()}
    found = shipping.deliveries(needs, [build()])
    assert found["new"].source == ""
    assert shipping.packers(found) == {}
    assert shipping.jobs(needs, [build()]) == {}


def test_the_host_that_has_a_compiler_compiles() -> None:
    assert list(shipping.jobs({"a": need(), "b": need(compiler=True)}, [])) == ["b"]


def test_a_builder_compiles_for_its_kind_and_its_source_alone() -> None:
    builder = need("", builder=True)
    assert list(shipping.jobs({"a": need("any"), "z": builder}, [])) == ["z"]
    for strange in (need("any", system="debian 13"), need("any", architecture="aarch64"), need("any", pins=("11434",))):
        assert list(shipping.jobs({"a": strange, "z": builder}, [])) == ["a"]


def test_code_for_one_cpu_is_compiled_on_one_such() -> None:
    assert list(shipping.jobs({"a": need("zen4"), "z": need("", builder=True)}, [])) == ["a"]


def test_two_builders_share_the_work() -> None:
    needs = {"a": need("any1"), "b": need("any2"), "y": need("", builder=True), "z": need("", builder=True)}
    assert sorted(shipping.jobs(needs, [])) == ["y", "z"]


def test_a_toolkit_suits_the_oldest_driver_of_those_that_it_is_for() -> None:
    needs = {"a": need(drivers=("580.95.05",)), "b": need(drivers=("550.54.14",))}
    (job,) = shipping.jobs(needs, [])["a"]
    assert job.drivers == ("550.54.14", "580.95.05")


def test_a_build_of_a_newer_toolkit_is_not_delivered_to_an_old_driver() -> None:
    needs = {"old": need(drivers=("550.54.14",)), "new": need(drivers=("580.95.05",))}
    shelf = [build(cuda="13.0.88")]
    assert list(shipping.deliveries(needs, shelf)) == ["new"]
    assert list(shipping.jobs(needs, shelf)) == ["old"]


hosts = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.builds(
        need,
        st.sampled_from(["", "zen4", "zen5", "any"]),
        compiler=st.booleans(),
        builder=st.booleans(),
        system=st.sampled_from(["debian 12", "debian 13"]),
    ),
    min_size=1,
)


@given(needs=hosts, has=st.sets(st.sampled_from("abcdefgh")), shelf=st.sets(st.sampled_from(["zen4", "any"])))
def test_each_host_that_waits_is_served_exactly_once(needs: Mapping[str, Need], has: set[str], shelf: set[str]) -> None:
    known = {
        name: need(one.recipe_id, system=one.system, compiler=one.compiler, builder=one.builder,
                   release=build(one.recipe_id) if name in has and one.recipe_id else None)
        for name, one in needs.items()
    }  # fmt: skip
    shelved = [build(recipe_id) for recipe_id in sorted(shelf)]
    delivered = shipping.deliveries(known, shelved)
    work = shipping.jobs(known, shelved)
    compiled = [name for jobs in work.values() for job in jobs for name in job.hosts]
    waiting = [name for name, one in known.items() if one.waits]
    assert sorted([*delivered, *compiled]) == sorted(waiting)
    # One compilation for each recipe, however many want it.
    recipes = [job.recipe["name"] for jobs in work.values() for job in jobs]
    assert len(recipes) == len(set(recipes))


def test_hosts_that_decided_nothing_are_left_out() -> None:
    choice = {
        "recipe_id": "r", "recipe": {"native": True}, "system": "debian 12", "architecture": "x86_64", "release": None,
        "drivers": [], "compiler": False, "builder": False, "pins": [11311],
    }  # fmt: skip
    hostvars = {"a": {"ansible_facts": {"llamarack_build_choice": choice}}, "failed": {}}
    assert list(filters.build_jobs(hostvars, ["a", "failed"], [])) == ["a"]


def test_the_pairs_that_instances_ask_for_are_found_in_policies_and_pins() -> None:
    instances = {
        "plain": {"policy": {"fit": "ram"}},
        "policy": {"policy": {"cache_type_k": "q8_0"}},
        "pin": {"policy": {"cache_type_k": "q8_0", "pins": {"cache_type_v": "q5_1"}}},
        "bare": {},
    }
    assert filters.build_cache_pairs(instances) == ["q8_0-q5_1", "q8_0-q8_0"]
