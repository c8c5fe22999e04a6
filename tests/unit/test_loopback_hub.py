"""The hub for tests answers ``huggingface_hub`` as the real one does, and misbehaves when told to."""

from __future__ import annotations

import hashlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path
from typing import Any

import hub
import huggingface_hub
import pytest
from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_download, hf_hub_url, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

PROGRAM = Path(__file__).resolve().parents[1] / "hub" / "hub.py"
REPOSITORY = "owner/Model-GGUF"
SPLIT = "Q8_0/model-Q8_0-00001-of-00002.gguf"
README = "README.md"
CONTENT = bytes(range(256)) * 2000


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a model of two splits, a text and a half-written file that nobody should see."""
    directory = tmp_path / "root" / REPOSITORY
    (directory / "Q8_0").mkdir(parents=True)
    (directory / SPLIT).write_bytes(CONTENT)
    (directory / SPLIT.replace("00001-of", "00002-of")).write_bytes(b"the rest")
    (directory / README).write_text("A model.\n", encoding="utf-8")
    (directory / ".making-x").mkdir()
    (directory / ".making-x" / "half.gguf").write_bytes(b"half")
    return directory


@pytest.fixture
def endpoint(repository: Path) -> Iterator[str]:
    """The address of a hub that serves it."""
    server = hub.make_server(repository.parents[1], "127.0.0.1", 0)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def api(endpoint: str) -> HfApi:
    """The real client, without whatever token this machine may hold."""
    return HfApi(endpoint=endpoint, token=False)


@pytest.fixture
def download(endpoint: str, tmp_path: Path) -> Callable[..., Path]:
    """Download a file with the real client into a directory of ours."""

    def fetch(path: str, **options: Any) -> Path:
        arguments = {"endpoint": endpoint, "local_dir": tmp_path / "downloads", "token": False, **options}
        return Path(hf_hub_download(REPOSITORY, path, **arguments))

    return fetch


def ask(url: str, headers: dict[str, str] | None = None, body: bytes | None = None) -> tuple[int, Message, bytes]:
    """Send one plain request; return the answer's status, headers and body."""
    request = urllib.request.Request(url, body, headers or {})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def stats(endpoint: str) -> dict[str, int]:
    """What the hub has counted so far."""
    return dict(json.loads(ask(f"{endpoint}/_stats")[2]))


def misbehave(endpoint: str, **faults: object) -> None:
    """Set the hub's faults; none sets it right again."""
    assert ask(f"{endpoint}/_faults", body=json.dumps(faults).encode())[0] == 200


def wait_for(port: int) -> None:
    """Wait until something listens there."""
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, "nothing listens"
            time.sleep(0.02)


def sha256(content: bytes) -> str:
    """The digest that the hub gives for a model's file."""
    return hashlib.sha256(content).hexdigest()


def test_a_model_is_described_with_sizes_and_digests(api: HfApi) -> None:
    info = api.model_info(REPOSITORY, files_metadata=True)
    files = {sibling.rfilename: sibling for sibling in info.siblings or []}

    assert (info.id, info.gated, len(info.sha or "")) == (REPOSITORY, False, 40)
    assert sorted(files) == [SPLIT, SPLIT.replace("00001-of", "00002-of"), README]
    split = files[SPLIT]
    assert split.size == len(CONTENT)
    assert split.lfs is not None
    assert split.lfs.sha256 == sha256(CONTENT)
    assert files[README].lfs is None
    # As `git hash-object` says.
    assert files[README].blob_id == hashlib.sha1(b"blob 9\0A model.\n").hexdigest()


def test_the_tree_is_listed_by_folder_and_as_a_whole(api: HfApi) -> None:
    def paths(**options: Any) -> list[str]:
        return [entry.path for entry in api.list_repo_tree(REPOSITORY, **options)]

    splits = [SPLIT, SPLIT.replace("00001-of", "00002-of")]
    assert sorted(paths()) == ["Q8_0", README]
    assert paths(path_in_repo="Q8_0") == splits
    assert sorted(paths(recursive=True)) == ["Q8_0", *splits, README]
    expanded = next(iter(api.list_repo_tree(REPOSITORY, path_in_repo="Q8_0", expand=True)))
    assert expanded.last_commit is not None
    with pytest.raises(EntryNotFoundError):
        paths(path_in_repo="Q4_0")


def test_single_paths_are_described_and_unknown_ones_left_out(api: HfApi) -> None:
    found = api.get_paths_info(REPOSITORY, [SPLIT, "Q8_0", "no-such-file"], expand=True)

    assert sorted(entry.path for entry in found) == ["Q8_0", SPLIT]


def test_a_file_is_downloaded_whole_and_counted(endpoint: str, download: Callable[..., Path]) -> None:
    assert download(SPLIT).read_bytes() == CONTENT
    assert download(README).read_text(encoding="utf-8") == "A model.\n"
    counted = stats(endpoint)
    assert counted["bytes"] == len(CONTENT) + 9
    assert counted["requests"] >= 4
    assert stats(endpoint) == counted, "asking for the statistics must not count"


def test_a_whole_repository_is_downloaded(endpoint: str, tmp_path: Path) -> None:
    snapshot_download(REPOSITORY, endpoint=endpoint, local_dir=tmp_path / "all", allow_patterns="Q8_0/*", token=False)

    assert (tmp_path / "all" / SPLIT).read_bytes() == CONTENT
    assert not (tmp_path / "all" / README).exists()


def test_a_files_metadata_names_its_commit_digest_and_size(endpoint: str, api: HfApi) -> None:
    metadata = get_hf_file_metadata(hf_hub_url(REPOSITORY, SPLIT, endpoint=endpoint), token=False)

    assert metadata.commit_hash == api.model_info(REPOSITORY).sha
    assert (metadata.etag, metadata.size) == (sha256(CONTENT), len(CONTENT))
    assert metadata.xet_file_data is None


def test_a_revision_is_main_or_the_commit_and_the_commit_follows_the_content(
    api: HfApi, repository: Path, download: Callable[..., Path]
) -> None:
    commit = api.model_info(REPOSITORY).sha
    assert api.model_info(REPOSITORY, revision=commit).sha == commit
    assert download(SPLIT, revision=commit).read_bytes() == CONTENT

    (repository / README).write_text("Another model.\n", encoding="utf-8")

    changed = api.model_info(REPOSITORY).sha
    assert changed != commit
    with pytest.raises(RevisionNotFoundError):
        api.model_info(REPOSITORY, revision=commit)
    (repository / README).write_text("A model.\n", encoding="utf-8")
    assert api.model_info(REPOSITORY).sha == commit


def test_what_is_not_there_is_refused_in_the_hubs_own_words(
    api: HfApi, endpoint: str, download: Callable[..., Path]
) -> None:
    with pytest.raises(RepositoryNotFoundError):
        api.model_info("owner/nothing")
    with pytest.raises(RevisionNotFoundError):
        download(SPLIT, revision="0" * 40)
    with pytest.raises(EntryNotFoundError):
        download("Q4_0/none.gguf")
    outside = f"{endpoint}/{REPOSITORY}/resolve/main/..%2F..%2F..%2Fetc%2Fpasswd"
    assert ask(outside)[0] == 404
    assert ask(f"{endpoint}/../x/resolve/main/a")[0] == 404


def test_a_gated_repository_opens_to_its_token_alone(
    api: HfApi, endpoint: str, repository: Path, download: Callable[..., Path]
) -> None:
    (repository / ".gated").write_text("hf_let_me_in\n", encoding="utf-8")

    with pytest.raises(GatedRepoError):
        api.model_info(REPOSITORY)
    with pytest.raises(GatedRepoError):
        download(SPLIT)
    with pytest.raises(GatedRepoError):
        download(SPLIT, token="hf_wrong")
    assert download(SPLIT, token="hf_let_me_in").read_bytes() == CONTENT
    info = HfApi(endpoint=endpoint, token="hf_let_me_in").model_info(REPOSITORY)
    assert info.gated == "manual"
    assert ".gated" not in [sibling.rfilename for sibling in info.siblings or []]


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        ("bytes=0-63", slice(0, 64)),
        ("bytes=100000-", slice(100000, None)),
        ("bytes=-10", slice(-10, None)),
        ("bytes=511990-999999999", slice(511990, None)),
    ],
)
def test_a_part_of_a_file_is_sent(endpoint: str, asked: str, part: slice) -> None:
    status, headers, body = ask(f"{endpoint}/{REPOSITORY}/resolve/main/{SPLIT}", {"Range": asked})

    start, stop, _ = part.indices(len(CONTENT))
    assert (status, body) == (206, CONTENT[part])
    assert headers["Content-Range"] == f"bytes {start}-{stop - 1}/{len(CONTENT)}"


def test_a_part_outside_the_file_is_refused_and_a_changed_file_is_sent_whole(endpoint: str) -> None:
    url = f"{endpoint}/{REPOSITORY}/resolve/main/{SPLIT}"
    status, headers, _ = ask(url, {"Range": f"bytes={len(CONTENT)}-"})
    assert (status, headers["Content-Range"]) == (416, f"bytes */{len(CONTENT)}")

    status, _, body = ask(url, {"Range": "bytes=10-", "If-Range": '"of-another-file"'})
    assert (status, body) == (200, CONTENT)


def test_a_dropped_download_goes_on_and_fetches_nothing_twice(
    endpoint: str, download: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The client gives up what it has of a piece when the connection ends: by default 10 MiB, more than this file.
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 100_000)
    misbehave(endpoint, drop_after=300_000)

    assert download(SPLIT).read_bytes() == CONTENT
    assert stats(endpoint)["bytes"] == len(CONTENT)


def test_corruption_keeps_the_size_and_meets_every_part_alike(endpoint: str) -> None:
    misbehave(endpoint, corrupt=True)
    url = f"{endpoint}/{REPOSITORY}/resolve/main/{SPLIT}"

    _, headers, whole = ask(url)
    assert headers["X-Linked-Etag"] == f'"{sha256(CONTENT)}"'
    assert len(whole) == len(CONTENT)
    middle = len(CONTENT) // 2
    assert [place for place in range(len(CONTENT)) if whole[place] != CONTENT[place]] == [*range(middle, middle + 64)]
    assert ask(url, {"Range": f"bytes={middle + 5}-"})[2] == whole[middle + 5 :]
    assert ask(f"{endpoint}/{REPOSITORY}/resolve/main/{README}")[2] == b"A model.\n"

    misbehave(endpoint)
    assert ask(url)[2] == CONTENT


def test_a_slow_hub_shares_its_rate_between_connections(endpoint: str) -> None:
    misbehave(endpoint, bytes_per_second=1_000_000)
    url = f"{endpoint}/{REPOSITORY}/resolve/main/{SPLIT}"

    before = time.monotonic()
    threads = [threading.Thread(target=ask, args=(url, {"Range": "bytes=0-249999"})) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert time.monotonic() - before > 0.3, "half a megabyte at a megabyte a second"
    misbehave(endpoint)
    before = time.monotonic()
    assert ask(url)[2] == CONTENT
    assert time.monotonic() - before < 0.3


def test_hidden_files_are_missing_everywhere(api: HfApi, endpoint: str, download: Callable[..., Path]) -> None:
    commit = api.model_info(REPOSITORY).sha
    misbehave(endpoint, hide="00002-of")

    assert sorted(api.list_repo_files(REPOSITORY, revision=commit)) == sorted([SPLIT, README])
    with pytest.raises(EntryNotFoundError):
        download(SPLIT.replace("00001-of", "00002-of"), revision=commit)


def test_an_unknown_fault_is_refused(endpoint: str) -> None:
    assert ask(f"{endpoint}/_faults", body=b'{"lose": 1}')[0] == 400
    assert ask(f"{endpoint}/_faults", body=b"[1, 2")[0] == 400


def test_a_client_that_hangs_up_is_no_event(endpoint: str, capfd: pytest.CaptureFixture[str]) -> None:
    misbehave(endpoint, bytes_per_second=2_000_000)
    with urllib.request.urlopen(f"{endpoint}/{REPOSITORY}/resolve/main/{SPLIT}", timeout=10) as answer:
        answer.read(1000)
    time.sleep(0.3)

    assert stats(endpoint)["bytes"] < len(CONTENT)
    assert capfd.readouterr().err == ""


def test_the_program_serves_without_any_package_and_ends_when_told(repository: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    root = repository.parents[1]
    # -S: without what the virtual environment holds.
    command = [sys.executable, "-I", "-S", str(PROGRAM), f"--root={root}", "--bind=127.0.0.1", f"--port={port}"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(port)
        assert ask(f"http://127.0.0.1:{port}/{REPOSITORY}/resolve/main/{README}")[2] == b"A model.\n"
        before = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=10)
    finally:
        process.kill()

    assert time.monotonic() - before < 2
    assert (process.returncode, errors) == (0, "")
