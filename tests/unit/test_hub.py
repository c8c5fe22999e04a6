"""Which files of a repository are one quant."""

from __future__ import annotations

from random import Random

import pytest
from ansible_collections.llamarack.core.plugins.module_utils.hub import (
    HubError,
    RemoteFile,
    check_entry,
    choose_splits,
)
from hypothesis import given
from hypothesis import strategies as st

WHERE = "unsloth/Kimi-K2.5-GGUF at 5f759b07a564"


def listing(*paths: str) -> list[RemoteFile]:
    """A listing with sizes and digests that do not matter here."""
    return [RemoteFile(path, 1, "0" * 64) for path in paths]


def split(stem: str, number: int, count: int) -> str:
    """A split's name as llama.cpp spells it."""
    return f"{stem}-{number:05d}-of-{count:05d}.gguf"


# As the big repositories lie: a folder for each quant, companions beside them.
KIMI = listing(
    "README.md",
    ".gitattributes",
    "imatrix_unsloth.gguf",
    "mmproj-F16.gguf",
    *(split("UD-TQ1_0/Kimi-K2.5-UD-TQ1_0", number, 5) for number in (3, 1, 5, 2, 4)),
    *(split("UD-Q2_K_XL/Kimi-K2.5-UD-Q2_K_XL", number, 8) for number in range(1, 9)),
    *(split("Q8_0/Kimi-K2.5-Q8_0", number, 23) for number in range(1, 24)),
)
# As small ones do: all in one folder, some files split and some not.
FLAT = listing(
    "gemma-Q4_K_M.gguf", "gemma-Q8_0.gguf", "gemma-UD-Q4_K_M.gguf", split("gemma-BF16", 1, 2), split("gemma-BF16", 2, 2)
)


def test_a_folder_is_a_quant_and_its_splits_come_in_order() -> None:
    names = [file.name for file in choose_splits(KIMI, "UD-TQ1_0", WHERE)]
    assert names == [split("Kimi-K2.5-UD-TQ1_0", number, 5) for number in range(1, 6)]
    assert len(choose_splits(KIMI, "q8_0", WHERE)) == 23


def test_the_end_of_a_name_is_a_quant() -> None:
    assert [file.name for file in choose_splits(FLAT, "Q8_0", WHERE)] == ["gemma-Q8_0.gguf"]
    assert len(choose_splits(FLAT, "BF16", WHERE)) == 2
    assert [file.name for file in choose_splits(FLAT, "UD-Q4_K_M", WHERE)] == ["gemma-UD-Q4_K_M.gguf"]


def test_a_quant_is_not_the_end_of_another() -> None:
    assert [file.name for file in choose_splits(FLAT, "Q4_K_M", WHERE)] == ["gemma-Q4_K_M.gguf"]


def test_a_word_that_means_two_models_is_refused_with_both() -> None:
    two = listing("gemma-3-1b-Q8_0.gguf", "gemma-3-4b-Q8_0.gguf")
    with pytest.raises(HubError, match=r"more than one model of quant Q8_0 \(gemma-3-1b-Q8_0, gemma-3-4b-Q8_0\)"):
        choose_splits(two, "Q8_0", WHERE)
    assert [file.name for file in choose_splits(two, "4b-Q8_0", WHERE)] == ["gemma-3-4b-Q8_0.gguf"]


def test_an_unknown_quant_is_told_the_nearest_and_all_there_are() -> None:
    with pytest.raises(HubError, match=r"has no quant UD-TQ1_1: did you mean UD-TQ1_0\? There are Q8_0, UD-Q2_K_XL, U"):
        choose_splits(KIMI, "UD-TQ1_1", WHERE)
    with pytest.raises(HubError, match=r"has no quant zzz: there are BF16, Q4_K_M, Q8_0, UD-Q4_K_M\."):
        choose_splits(FLAT, "zzz", WHERE)


def test_a_missing_split_on_the_hub_is_named() -> None:
    holed = [file for file in KIMI if "00003-of-00005" not in file.path]
    with pytest.raises(HubError, match=r"lacks split 00003 of 5 of Kimi-K2\.5-UD-TQ1_0: the upload is incomplete"):
        choose_splits(holed, "UD-TQ1_0", WHERE)


def test_two_uploads_in_one_folder_are_not_mixed() -> None:
    mixed = [*KIMI, *listing(split("UD-TQ1_0/Kimi-K2.5-UD-TQ1_0", 1, 6))]
    with pytest.raises(HubError, match="mixes sets"):
        choose_splits(mixed, "UD-TQ1_0", WHERE)


def test_projectors_and_matrices_are_no_models() -> None:
    with pytest.raises(HubError, match="holds no GGUF file"):
        choose_splits(listing("mmproj-F16.gguf", "imatrix_unsloth.gguf", "config.json"), "F16", WHERE)


@given(count=st.integers(1, 40), order=st.randoms())
def test_whatever_the_order_of_the_listing_the_set_is_whole_and_sorted(count: int, order: Random) -> None:
    names = [split("Q/x-Q", number, count) for number in range(1, count + 1)]
    shuffled = list(names)
    order.shuffle(shuffled)
    assert [file.path for file in choose_splits(listing(*shuffled), "Q", "x")] == names


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"repository": "kimi", "quant": "Q", "revision": "main"}, "repository is 'kimi', but should be owner/name"),
        ({"repository": "../etc/x", "quant": "Q", "revision": "main"}, "should be owner/name"),
        ({"repository": "a/b", "quant": "../Q", "revision": "main"}, "quant is '../Q'"),
        ({"repository": "a/b", "quant": "Q"}, "revision is None, but should be a commit"),
        ({"source": "ftp"}, "should be hub or local"),
        ({"source": "local", "path": "models"}, "absolute path"),
    ],
)
def test_an_entry_that_cannot_be_meant_is_refused(entry: dict[str, object], said: str) -> None:
    with pytest.raises(HubError, match=said):
        check_entry("kimi", entry)


def test_good_entries_pass() -> None:
    check_entry("kimi-k2.5", {"repository": "unsloth/Kimi-K2.5-GGUF", "quant": "UD-TQ1_0", "revision": "main"})
    check_entry("mine", {"source": "local", "path": "/srv/models/mine"})
    with pytest.raises(HubError, match="becomes a folder"):
        check_entry("../x", {})
