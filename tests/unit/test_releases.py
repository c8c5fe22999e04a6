"""Releases side by side: a damaged one is told from a whole one, what is needed stays, a rollback leads somewhere."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from ansible_collections.llamarack.core.plugins.module_utils import documents, releases
from ansible_collections.llamarack.core.plugins.module_utils.build import BuildError
from ansible_collections.llamarack.core.plugins.module_utils.releases import Release
from hypothesis import given
from hypothesis import strategies as st


def install(root: Path, build_id: str, recipe_id: str = "r1") -> Path:
    """A release as the product writes one."""
    release = root / "releases" / build_id
    (release / "bin").mkdir(parents=True)
    (release / "bin" / "llama-server").write_bytes(b"program")
    binaries = {"llama-server": hashlib.sha256(b"program").hexdigest()}
    body = {"build_id": build_id, "recipe_id": recipe_id, "binaries": binaries}
    (release / "build.json").write_text(documents.render("build", body))
    return release


def test_a_whole_release_is_found_by_its_recipe(tmp_path: Path) -> None:
    install(tmp_path, "b1-cpu-aaaaaaaa")
    install(tmp_path, "b2-cpu-bbbbbbbb", "r2")
    found = releases.with_recipe(tmp_path, "r2")
    assert found
    assert found["build_id"] == "b2-cpu-bbbbbbbb"
    assert releases.with_recipe(tmp_path, "r3") is None


def test_of_two_with_one_recipe_the_current_one_is_taken(tmp_path: Path) -> None:
    for name in ("b1-cpu-aaaaaaaa", "b1-cpu-bbbbbbbb"):
        install(tmp_path, name)
    (tmp_path / "current").symlink_to("releases/b1-cpu-bbbbbbbb")
    found = releases.with_recipe(tmp_path, "r1")
    assert found
    assert found["build_id"] == "b1-cpu-bbbbbbbb"


@pytest.mark.parametrize("harm", ["content", "program", "document", "kind"])
def test_a_damaged_release_is_not_taken_for_a_whole_one(tmp_path: Path, harm: str) -> None:
    release = install(tmp_path, "b1-cpu-aaaaaaaa")
    if harm == "content":
        (release / "bin" / "llama-server").write_bytes(b"progrom")
    elif harm == "program":
        (release / "bin" / "llama-server").unlink()
    elif harm == "document":
        (release / "build.json").write_text("{")
    else:
        (release / "build.json").write_text(documents.render("plan", {}))
    assert releases.damage(release)
    assert releases.with_recipe(tmp_path, "r1") is None


def test_what_was_interrupted_is_no_release(tmp_path: Path) -> None:
    install(tmp_path, ".b1-cpu-aaaaaaaa.new")
    assert releases.installed(tmp_path) == []


def test_releases_are_known_by_their_age(tmp_path: Path) -> None:
    for age, name in enumerate(["b3-cpu-cccccccc", "b1-cpu-aaaaaaaa", "b2-cpu-bbbbbbbb"]):
        os.utime(install(tmp_path, name) / "build.json", (1000 + age, 1000 + age))
    assert [one.build_id for one in releases.installed(tmp_path)] == [
        "b3-cpu-cccccccc", "b1-cpu-aaaaaaaa", "b2-cpu-bbbbbbbb",
    ]  # fmt: skip


names = st.lists(st.integers(0, 99).map(lambda number: f"b{number}"), unique=True, max_size=12)


@given(installed=names, keep=st.integers(-1, 9), data=st.data())
def test_nothing_that_is_needed_is_removed_and_no_more_than_asked_stays(
    installed: list[str], keep: int, data: st.DataObject
) -> None:
    needed = data.draw(st.sets(st.sampled_from(installed))) if installed else set()
    found = [Release(name, float(age)) for age, name in enumerate(installed)]
    gone = set(releases.superfluous(found, keep, needed))
    assert not gone & needed
    assert gone <= set(installed)
    staying = set(installed) - gone
    assert set(installed[-max(1, keep) :]) <= staying
    assert len(staying) <= max(1, keep) + len(needed)


def test_a_build_that_runs_or_that_a_service_names_is_in_use(tmp_path: Path) -> None:
    for name in ("b1", "b2", "b3"):
        install(tmp_path, name)
    running = [f"{tmp_path}/releases/b1/bin/llama-server\n"]
    units = ["ExecStart=/opt/llamarack/llama.cpp/releases/b2/bin/llama-server"]
    assert releases.in_use(tmp_path, running, units) == {"b1", "b2"}


INSTALLED = [Release("b1", 1.0), Release("b2", 2.0), Release("b3", 3.0)]


def test_a_rollback_leads_to_the_one_before_or_to_a_named_one() -> None:
    assert releases.rollback_target("", "b3", "b2", INSTALLED) == "b2"
    assert releases.rollback_target("b1", "b3", "b2", INSTALLED) == "b1"


@pytest.mark.parametrize(
    ("wanted", "previous", "said"),
    [
        ("b9", "b2", "There is no build b9 on this host; there is: b1, b2, b3"),
        ("", "", "No build was current before b3"),
        ("", "b3", "No build was current before b3"),
        ("", "b0", "The build before, b0, is gone"),
    ],
)
def test_a_rollback_to_nowhere_says_what_there_is(wanted: str, previous: str, said: str) -> None:
    with pytest.raises(BuildError, match=said):
        releases.rollback_target(wanted, "b3", previous, INSTALLED)
