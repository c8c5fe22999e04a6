"""Which files of a repository are the splits of one quant. Pure: a listing in, splits or one sentence out.

Repositories lay quants out in three ways: a folder for each (``UD-Q2_K_XL/…-00001-of-00008.gguf``), one folder with the
quant in each name (``model-Q4_K_M.gguf``), and both. Names are compared with case first, without it second.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

# What llama.cpp itself names splits by: it finds the others from the name of the first.
SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)

# Files that end in .gguf beside a model and are none: vision projectors and importance matrices.
COMPANION = re.compile(r"(^|[-_.])(mmproj|imatrix)([-_.]|$)", re.IGNORECASE)

# How publishers spell a quant at the end of a file's name.
QUANT_NAME = re.compile(r"(?:UD-)?(?:I?Q\d\w*|TQ\d_\d|BF16|F16|F32|MXFP4\w*|NVFP4\w*)$", re.IGNORECASE)

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
WORD = re.compile(r"[A-Za-z0-9][\w.-]*")
COMMIT = re.compile(r"[0-9a-f]{40}")


class HubError(Exception):
    """What the catalogue asks for is not to be had; the message says what is there instead."""


@dataclass(frozen=True)
class RemoteFile:
    """A file as the hub lists it. ``sha256`` is empty where the hub keeps none (files outside its large storage)."""

    path: str
    size_bytes: int
    sha256: str = ""

    @property
    def name(self) -> str:
        """The file's name without its folders."""
        return PurePosixPath(self.path).name


def check_entry(name: str, entry: dict[str, object]) -> None:
    """Refuse a catalogue entry that cannot be meant; its words become folders.

    :raises HubError: with one sentence about the first thing that is wrong.
    """
    source = entry.get("source") or "hub"
    if not WORD.fullmatch(name):
        raise HubError(f"The model name {name!r} becomes a folder: use letters, digits, dots and hyphens.")
    if source not in ("hub", "local"):
        raise HubError(f"{name}: source is {source!r}, but should be hub or local.")
    if source == "local":
        if not str(entry.get("path") or "").startswith("/"):
            raise HubError(f"{name}: source local needs path, the absolute path of a directory on the host.")
        return
    wanted = (("repository", REPOSITORY, "owner/name"), ("quant", WORD, "a word such as UD-Q2_K_XL"))
    for key, pattern, example in (*wanted, ("revision", WORD, "a commit")):
        if not pattern.fullmatch(str(entry.get(key) or "")):
            raise HubError(f"{name}: {key} is {entry.get(key)!r}, but should be {example}.")


def stem_of(path: str) -> str:
    """A file's name without the split number and the ending."""
    name = PurePosixPath(path).name
    split = SPLIT_NAME.fullmatch(name)
    return split["stem"] if split else re.sub(r"\.gguf$", "", name, flags=re.IGNORECASE)


def has_quant(path: str, quant: str) -> bool:
    """Whether a folder is the quant, or the name ends with it (``Q4_K_M`` is not the end of ``UD-Q4_K_M``)."""
    if quant in PurePosixPath(path).parts[:-1]:
        return True
    stem = stem_of(path)
    if QUANT_NAME.fullmatch(quant):
        spelled = QUANT_NAME.search(stem)
        return spelled is not None and spelled[0] == quant
    return re.search(rf"(^|[-_.]){re.escape(quant)}$", stem) is not None


def quants_of(files: Sequence[RemoteFile]) -> list[str]:
    """The quants that a listing holds, as far as names tell."""
    names = set()
    for file in files:
        folders = PurePosixPath(file.path).parts[:-1]
        found = QUANT_NAME.search(stem_of(file.path))
        names.add(folders[-1] if folders else found[0] if found else stem_of(file.path))
    return sorted(names)


def models_in(files: Sequence[RemoteFile]) -> list[RemoteFile]:
    """The files that hold weights of a model."""
    return [file for file in files if file.path.lower().endswith(".gguf") and not COMPANION.search(stem_of(file.path))]


def choose_splits(files: Sequence[RemoteFile], quant: str, where: str) -> list[RemoteFile]:
    """The splits of one quant, in order.

    :param files: the whole listing.
    :param quant: as the catalogue names it.
    :param where: repository and revision, for the sentences.
    :raises HubError: when there is no such quant, more than one set of it, or a set with a hole.
    """
    models = models_in(files)
    if not models:
        raise HubError(f"{where} holds no GGUF file: correct repository or revision in the catalogue.")
    chosen = [file for file in models if has_quant(file.path, quant)] or [
        file for file in models if has_quant(file.path.lower(), quant.lower())
    ]
    if not chosen:
        there = quants_of(models)
        near = difflib.get_close_matches(quant, there, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}? There are " if near else "there are "
        raise HubError(f"{where} has no quant {quant}: {hint}{', '.join(there)}.")
    sets: dict[str, list[RemoteFile]] = {}
    for file in chosen:
        sets.setdefault(str(PurePosixPath(file.path).parent / stem_of(file.path)), []).append(file)
    if len(sets) > 1:
        raise HubError(
            f"{where} has more than one model of quant {quant} ({', '.join(sorted(sets))}): "
            "name the folder or the longer end of the file's name as quant."
        )
    return whole_set(next(iter(sets.values())), where)


def whole_set(files: Sequence[RemoteFile], where: str) -> list[RemoteFile]:
    """The files of one set in the order of their numbers.

    :raises HubError: when one is missing, or they do not agree how many there are.
    """
    numbered = {}
    counts = set()
    for file in files:
        split = SPLIT_NAME.fullmatch(file.name)
        if split:
            numbered[int(split["number"])] = file
            counts.add(int(split["count"]))
    if not numbered:
        return list(files)
    if len(counts) != 1 or len(numbered) != len(files):
        raise HubError(
            f"{where} mixes sets of different lengths in {stem_of(files[0].path)}: choose another revision or quant."
        )
    count = counts.pop()
    missing = [number for number in range(1, count + 1) if number not in numbered]
    if missing:
        names = ", ".join(f"{number:05d}" for number in missing[:5])
        raise HubError(
            f"{where} lacks split {names} of {count} of {stem_of(files[0].path)}: the upload is incomplete there; "
            "choose another revision or quant."
        )
    return [numbered[number] for number in range(1, count + 1)]
