"""The module gguf_fetch, with a hub that answers and a real model that arrives, breaks, rots and comes back."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hub
import pytest
import tiny_k2
from ansible.module_utils.testing import patch_module_args
from ansible_collections.llamarack.core.plugins.module_utils import documents
from ansible_collections.llamarack.core.plugins.modules import gguf_fetch

REPOSITORY = "llamarack/tiny-kimi-k2-GGUF"
ENTRY = {"repository": REPOSITORY, "revision": "main", "quant": "Q8_0", "alias": "tiny"}
FIRST = "tiny-kimi-k2-Q8_0-00001-of-00003.gguf"

Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the hub offers."""
    root: Path = tmp_path_factory.mktemp("shelf")
    tiny_k2.make(root / REPOSITORY)
    return root


@pytest.fixture
def server(shelf: Path) -> Iterator[Any]:
    """A hub that behaves, until a test says otherwise."""
    served = hub.make_server(shelf, "127.0.0.1", 0)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    yield served
    served.shutdown()
    served.server_close()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A host whose best mount is known."""
    store = {"candidates": [{"path": str(tmp_path / "mnt/llamarack/models")}], "rejected": []}
    documents.write_document(str(tmp_path / "state/model_store.json"), "model_store", store, check_mode=False)
    return tmp_path / "state"


@pytest.fixture
def run(server: Any, state: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the module as the role does."""

    def call(entry: dict[str, Any] | None = None, **arguments: Any) -> dict[str, Any]:
        plain = {
            "name": "tiny",
            "entry": {**ENTRY, **(entry or {})},
            "endpoint": f"http://127.0.0.1:{server.server_address[1]}",
            "margin_bytes": 0,
            "state_dir": str(state),
        }
        with patch_module_args({**plain, **arguments}), pytest.raises(SystemExit):
            gguf_fetch.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    return call


def sent(server: Any) -> int:
    """Bytes of model files that the hub has sent."""
    return int(server.stats()["bytes"])


def files_below(directory: Path) -> list[str]:
    """Names of the GGUF files that have their final names."""
    return sorted(path.name for path in directory.rglob("*.gguf") if ".partial" not in str(path))


def test_a_model_arrives_whole_and_a_second_run_asks_nobody(run: Run, server: Any, state: Path) -> None:
    first = run()
    assert first["changed"], first
    model = first["model"]
    directory = Path(model["path"])
    assert directory.parts[-3:] == (REPOSITORY.split("/")[1], model["revision"], "Q8_0")
    assert files_below(directory.parent) == [split["name"] for split in model["splits"]]
    assert model["first_split"] == str(directory / FIRST)
    assert model["gguf"]["architecture"] == "deepseek2"
    assert model["gguf"]["expert_count"] == 16
    assert model["bytes"] == sum(path.stat().st_size for path in directory.iterdir())
    assert json.loads((state / "models/tiny/model.json").read_text())["splits"] == model["splits"]
    assert [path.name for path in directory.parent.iterdir()] == ["Q8_0"], "nothing is left of the work"

    before = server.stats()
    again = run()
    assert not again["changed"]
    assert again["model"] == model
    assert server.stats() == before


def test_a_branch_that_moved_is_not_followed_until_the_catalogue_says_so(run: Run, shelf: Path) -> None:
    revision = run()["model"]["revision"]
    (shelf / REPOSITORY / "NEWS.md").write_text("The branch has moved.\n")
    try:
        Path(run()["model"]["path"], FIRST).unlink()
        assert run()["failed"], "the old commit is not what the hub has now, and a newer one is not taken silently"
    finally:
        (shelf / REPOSITORY / "NEWS.md").unlink()
    assert run()["model"]["revision"] == revision


def test_a_split_that_went_is_the_only_one_that_is_fetched(run: Run, server: Any) -> None:
    model = run()["model"]
    (Path(model["path"]) / FIRST).unlink()
    before = sent(server)
    repaired = run()
    assert repaired["changed"]
    assert sent(server) - before == model["splits"][0]["bytes"]
    assert files_below(Path(model["path"])) == [split["name"] for split in model["splits"]]


def test_a_killed_fetch_is_gone_on_with_where_it_stopped(run: Run, server: Any, shelf: Path) -> None:
    target = Path(run(_ansible_check_mode=True)["msg"].rpartition(" to ")[2])
    whole = (shelf / REPOSITORY / "Q8_0" / FIRST).read_bytes()
    partial = target.with_name(".Q8_0.partial")
    partial.mkdir(parents=True)
    (partial / f"{FIRST}.part").write_bytes(whole[:4_000_000])
    model = run()["model"]
    assert sent(server) == model["bytes"] - 4_000_000


def test_what_arrives_wrong_twice_is_refused_and_nothing_is_taken_into_use(
    run: Run, server: Any, tmp_path: Path
) -> None:
    server.set_faults(hub.Faults(corrupt=True))
    result = run()
    assert result["failed"]
    assert "wrong SHA-256" in result["msg"]
    assert files_below(tmp_path / "mnt") == []
    server.set_faults(hub.Faults())
    assert run()["changed"]


def test_rot_behind_an_unchanged_time_is_found_by_a_full_look_and_mended(run: Run, server: Any) -> None:
    model = run()["model"]
    path = Path(model["path"]) / FIRST
    before = path.stat()
    with path.open("r+b") as stream:
        stream.seek(3_000_000)
        stream.write(b"rot")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not run()["changed"], "a stamp cannot see it"
    fetched = sent(server)
    assert run(verify="full")["changed"]
    assert sent(server) - fetched == model["splits"][0]["bytes"]
    assert not run(verify="full")["changed"]


def test_a_second_entry_of_the_same_files_fetches_nothing(run: Run, server: Any) -> None:
    model = run()["model"]
    before = sent(server)
    other = run(name="other", entry={"alias": "other"})
    assert other["model"]["path"] == model["path"]
    assert sent(server) == before


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"quant": "Q8_1"}, "has no quant Q8_1: did you mean Q8_0?"),
        ({"repository": "llamarack/nobody-GGUF"}, "has no repository llamarack/nobody-GGUF"),
        ({"revision": "v9"}, "has no revision v9"),
        ({"repository": "kimi"}, "should be owner/name"),
        ({"source": "local", "path": "/not/there"}, "/not/there is not a directory"),
    ],
)
def test_a_wrong_entry_is_told_in_one_sentence(run: Run, tmp_path: Path, entry: dict[str, Any], said: str) -> None:
    result = run(entry)
    assert result["failed"]
    assert said in result["msg"]
    assert result["msg"].startswith("tiny: ")
    assert "\n" not in result["msg"]
    assert files_below(tmp_path / "mnt") == []


def test_a_hub_that_does_not_answer_is_told_with_its_address(run: Run) -> None:
    result = run(endpoint="http://127.0.0.1:9")
    assert "The hub at http://127.0.0.1:9 does not answer" in result["msg"]


def test_a_set_with_a_hole_is_refused_before_the_first_byte(run: Run, server: Any) -> None:
    server.set_faults(hub.Faults(hide="00002-of"))
    assert "lacks split 00002 of 3" in run()["msg"]
    assert sent(server) == 0


def test_a_model_larger_than_every_mount_is_refused_before_the_first_byte(run: Run, server: Any) -> None:
    result = run(margin_bytes=2**60)
    assert "no mount has them" in result["msg"]
    assert sent(server) == 0


def test_check_mode_tells_what_would_come_and_brings_nothing(
    run: Run, server: Any, state: Path, tmp_path: Path
) -> None:
    result = run(_ansible_check_mode=True)
    assert result["changed"]
    assert "in 3 of 3 files" in result["msg"]
    assert sent(server) == 0
    assert not (state / "models").exists()
    assert not (tmp_path / "mnt").exists()


def test_a_gated_repository_needs_its_token(run: Run, shelf: Path) -> None:
    (shelf / REPOSITORY / ".gated").write_text("hf_secret")
    try:
        assert "set gguf_model_token" in run()["msg"]
        assert run(token="hf_secret")["changed"]
    finally:
        (shelf / REPOSITORY / ".gated").unlink()


def test_a_model_in_a_directory_of_the_owners_is_served_where_it_lies(run: Run, shelf: Path, server: Any) -> None:
    local = {"source": "local", "path": str(shelf / REPOSITORY)}
    model = run(local)["model"]
    assert model["path"] == str(shelf / REPOSITORY / "Q8_0")
    assert model["revision"] == ""
    assert not run(local)["changed"]
    assert server.stats()["requests"] == 0
