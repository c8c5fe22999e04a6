"""The releases of llama.cpp that lie side by side: which are whole, which stay, and where a rollback leads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.llamarack.core.plugins.module_utils import documents
from ansible_collections.llamarack.core.plugins.module_utils.build import BuildError
from ansible_collections.llamarack.core.plugins.module_utils.fetch import sha256_of


@dataclass(frozen=True)
class Release:
    """One installed build: its name and when it was installed (seconds since 1970)."""

    build_id: str
    installed: float


def document_of(release: Path) -> dict[str, Any] | None:
    """The build document of a release, or None where there is none that can be read."""
    try:
        return documents.read_document(str(release / "build.json"), "build")
    except documents.DocumentError:
        return None


def damage(release: Path) -> str | None:
    """What is wrong with a release's files: the first that is not as its document says. None: it is whole."""
    document = document_of(release)
    if document is None:
        return "build.json is missing or cannot be read"
    binaries = document.get("binaries")
    if not isinstance(binaries, dict) or not binaries:
        return "build.json names no files"
    for name, digest in binaries.items():
        path = release / "bin" / name
        try:
            if sha256_of(path) != digest:
                return f"bin/{name} does not have the SHA-256 in build.json"
        except OSError:
            return f"bin/{name} is missing or cannot be read"
    return None


def is_whole(release: Path) -> bool:
    """Whether a release's document is there and each of its files has the digest that stands in it."""
    return damage(release) is None


def with_recipe(root: Path, recipe_id: str) -> dict[str, Any] | None:
    """The document of a whole release with a recipe; the current one first."""
    current = target_of(root / "current")
    candidates = sorted((root / "releases").glob("*/build.json"))
    candidates.sort(key=lambda path: path.parent.name != current)
    for path in candidates:
        document = document_of(path.parent)
        if document and document.get("recipe_id") == recipe_id and is_whole(path.parent):
            return document
    return None


def installed(root: Path) -> list[Release]:
    """Every release with a document, oldest first."""
    found = [Release(path.parent.name, path.stat().st_mtime) for path in (root / "releases").glob("*/build.json")]
    return sorted((one for one in found if not one.build_id.startswith(".")), key=lambda one: one.installed)


def target_of(link: Path) -> str:
    """The build that a link names; "" where there is no link."""
    return Path(link.readlink()).name if link.is_symlink() else ""


def superfluous(releases: Iterable[Release], keep: int, needed: Iterable[str]) -> list[str]:
    """The builds that may go: all but the newest and those that something needs.

    :param keep: how many of the newest stay; at least one does.
    :param needed: the current one, the one before, those that run or that a service names. They always stay.
    """
    newest = sorted(releases, key=lambda one: (one.installed, one.build_id), reverse=True)
    staying = {one.build_id for one in newest[: max(1, keep)]} | set(needed)
    return [one.build_id for one in newest if one.build_id not in staying]


def in_use(root: Path, command_lines: Iterable[str], units: Iterable[str]) -> set[str]:
    """The builds that running processes or written services name.

    :param command_lines: paths of running programs and what they mapped.
    :param units: texts of units, configurations and plans.
    """
    names = [path.name for path in (root / "releases").glob("*") if not path.name.startswith(".")]
    texts = [*command_lines, *units]
    return {name for name in names if any(f"/{name}/" in text for text in texts)}


def rollback_target(wanted: str, current: str, previous: str, releases: Sequence[Release]) -> str:
    """The build that a rollback leads to: the wanted one, else the one before the current.

    :raises BuildError: when it is not installed, or there is none before.
    """
    known = [one.build_id for one in releases]
    there = ", ".join(known) or "none"
    if wanted:
        if wanted not in known:
            raise BuildError(f"There is no build {wanted} on this host; there is: {there}.")
        return wanted
    if not previous or previous == current:
        raise BuildError(
            f"No build was current before {current or 'this one'} on this host: name one with "
            f"-e llama_cpp_rollback_to=<build_id>; there is: {there}."
        )
    if previous not in known:
        raise BuildError(f"The build before, {previous}, is gone from this host; there is: {there}.")
    return previous
