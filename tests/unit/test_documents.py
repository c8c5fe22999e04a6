"""The documents: written whole, left alone when nothing changed, refused when they are not what they should be."""

import json
from pathlib import Path

import pytest
from ansible_collections.llamarack.core.plugins.module_utils import documents


def test_a_document_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = str(tmp_path / "state" / "plan.json")
    changed, diff = documents.write_document(path, "plan", {"instance": "main"}, check_mode=False)
    assert changed
    assert diff["before"] == ""
    assert documents.read_document(path, "plan")["instance"] == "main"


def test_the_second_write_of_the_same_changes_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    documents.write_document(path, "plan", {"a": 1}, check_mode=False)
    before = (tmp_path / "plan.json").stat().st_mtime_ns
    assert documents.write_document(path, "plan", {"a": 1}, check_mode=False)[0] is False
    assert (tmp_path / "plan.json").stat().st_mtime_ns == before


def test_check_mode_says_changed_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    assert documents.write_document(str(path), "plan", {"a": 1}, check_mode=True)[0] is True
    assert not path.exists()


def test_volatile_values_alone_are_no_change(tmp_path: Path) -> None:
    path = str(tmp_path / "host_profile.json")
    volatile = frozenset({"free_bytes"})
    documents.write_document(path, "host_profile", {"mounts": [{"path": "/", "free_bytes": 1}]}, False, volatile)
    again = documents.write_document(
        path, "host_profile", {"mounts": [{"path": "/", "free_bytes": 2}]}, False, volatile
    )
    assert again[0] is False
    moved = documents.write_document(
        path, "host_profile", {"mounts": [{"path": "/m", "free_bytes": 2}]}, False, volatile
    )
    assert moved[0] is True


def test_a_missing_document_names_itself(tmp_path: Path) -> None:
    with pytest.raises(documents.DocumentMissing, match=r"plan\.json is not there yet"):
        documents.read_document(str(tmp_path / "plan.json"), "plan")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", json.dumps({"kind": "build", "schema": 1}), json.dumps({"kind": "plan", "schema": 99})],
    ids=["empty", "cut off", "a list", "another kind", "another schema"],
)
def test_what_is_not_the_document_is_refused_in_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(documents.DocumentError, match=r"plan\.json"):
        documents.read_document(str(path), "plan")


def test_a_failed_write_leaves_the_old_document_and_no_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    documents.write_document(str(path), "plan", {"a": 1}, check_mode=False)

    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(documents.os, "fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        documents.write_document(str(path), "plan", {"a": 2}, check_mode=False)
    assert documents.read_document(str(path), "plan")["a"] == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]
