#!/usr/bin/env python3
"""A model hub for tests: repositories in a directory, served as the Hugging Face Hub serves its own.

``hub.py --root DIR --bind ADDRESS --port N`` offers every DIR/<owner>/<name>/ as a model repository to
``huggingface_hub`` (HF_ENDPOINT points here). End points of its own, for the tests: GET /_stats and POST /_faults.
It needs Python 3.9 and nothing else: it also runs inside a bare container.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

PIECE_BYTES = 64 * 1024
CORRUPTED_BYTES = 64
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
RANGE = re.compile(r"bytes=(\d*)-(\d*)")
GATE_FILE = ".gated"


class HubError(Exception):
    """An answer other than success: its status, the hub's own error code and the sentence that goes with it."""

    def __init__(self, status: HTTPStatus, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


@dataclass(frozen=True)
class File:
    """One file of a repository: its path inside it, and what the hub tells about it."""

    path: str
    location: Path
    size_bytes: int
    sha256: str
    git_sha1: str

    @property
    def is_lfs(self) -> bool:
        """Whether the hub keeps it outside git and names it by its SHA-256: all big files are, here the models."""
        return self.path.endswith(".gguf")

    @property
    def pointer(self) -> bytes:
        """What git holds in the place of an LFS file."""
        return (
            f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {self.size_bytes}\n".encode()
        )

    @property
    def blob_id(self) -> str:
        """The git object that stands for the file: the file itself, or the pointer to it."""
        return git_blob_sha1(self.pointer) if self.is_lfs else self.git_sha1

    @property
    def etag(self) -> str:
        """What clients compare to know whether two files are the same."""
        return self.sha256 if self.is_lfs else self.blob_id


@dataclass(frozen=True)
class Repository:
    """A repository as it lies on the disk now."""

    name: str
    commit: str
    files: tuple[File, ...]
    token: str | None


@dataclass(frozen=True)
class Faults:
    """How the server misbehaves; by default it does not."""

    bytes_per_second: float | None = None
    corrupt: bool = False
    drop_after: int | None = None
    hide: str | None = None

    def hides(self, path: str) -> bool:
        """Whether the file is to be missing."""
        return self.hide is not None and self.hide in path


def git_blob_sha1(content: bytes) -> str:
    """Return the name that git gives to this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def digests(location: Path, size: int) -> tuple[str, str]:
    """Return the SHA-256 and the git blob SHA-1 of a file, read once."""
    sha256, sha1 = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size)
    with location.open("rb") as stream:
        for piece in iter(lambda: stream.read(1024 * 1024), b""):
            sha256.update(piece)
            sha1.update(piece)
    return sha256.hexdigest(), sha1.hexdigest()


def wanted_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return the first byte and the byte after the last one that a Range header asks for, or None for the whole file.

    A header that asks for several ranges, or that cannot be read, is passed over as HTTP allows.
    Raises ValueError when the range lies outside the file.
    """
    found = RANGE.fullmatch(header.strip()) if header else None
    if found is None or found.groups() == ("", ""):
        return None
    first, last = found.groups()
    if not first:
        start, end = max(size - int(last), 0), size
    else:
        start, end = int(first), min(int(last) + 1, size) if last else size
    if start >= end:
        raise ValueError(f"{header} lies outside {size} bytes")
    return start, end


class HubServer(ThreadingHTTPServer):
    """The server: the repositories' place, what was counted, and the faults in force."""

    daemon_threads = True
    # Several downloads open many connections at once; the default of 5 would make some wait for a retry.
    request_queue_size = 64

    def __init__(self, root: Path, bind: str, port: int) -> None:
        self.root = root
        self.faults = Faults()
        self._digests: dict[Path, tuple[int, int, str, str]] = {}
        self._hashing = threading.Lock()
        self._counting = threading.Lock()
        self._requests = 0
        self._bytes = 0
        self._pacing = threading.Lock()
        self._next_piece_at = 0.0
        super().__init__((bind, port), Handler)

    def server_bind(self) -> None:
        """Bind without asking the name service for our name, which may be slow in a container."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep quiet about clients that hang up: killed downloads are what the tests are about."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def count(self, requests: int = 0, sent_bytes: int = 0) -> None:
        """Add to the statistics."""
        with self._counting:
            self._requests += requests
            self._bytes += sent_bytes

    def stats(self) -> dict[str, int]:
        """Return how many requests came (the own end points aside) and how many bytes of files were sent."""
        with self._counting:
            return {"requests": self._requests, "bytes": self._bytes}

    def pace(self, piece_bytes: int, bytes_per_second: float) -> None:
        """Wait until this piece may be sent: all connections share one rate."""
        with self._pacing:
            now = time.monotonic()
            send_at = max(now, self._next_piece_at)
            self._next_piece_at = send_at + piece_bytes / bytes_per_second
        time.sleep(send_at - now)

    def set_faults(self, faults: Faults) -> None:
        """Misbehave like this from now on."""
        with self._pacing:
            self.faults = faults
            self._next_piece_at = 0.0

    def repository(self, owner: str, name: str) -> Repository:
        """Read one repository. Raises HubError when it is not there."""
        directory = self.root / owner / name
        if not (NAME.fullmatch(owner) and NAME.fullmatch(name) and directory.is_dir()):
            raise HubError(HTTPStatus.NOT_FOUND, "RepoNotFound", "Repository not found")
        files = tuple(self._file(directory, location) for location in _visible_files(directory))
        # Derived from the content alone, so that the same files have the same commit on every host and after a restart.
        lines = "".join(f"{file.path}\t{file.size_bytes}\t{file.sha256}\n" for file in files)
        commit = hashlib.sha256(lines.encode()).hexdigest()[:40]
        gate = directory / GATE_FILE
        token = gate.read_text(encoding="utf-8").strip() if gate.is_file() else None
        return Repository(f"{owner}/{name}", commit, files, token)

    def _file(self, directory: Path, location: Path) -> File:
        status = location.stat()
        # One at a time: parallel connections ask for the same file at once, and it should be read once.
        with self._hashing:
            known = self._digests.get(location)
            if known is None or known[:2] != (status.st_size, status.st_mtime_ns):
                known = (status.st_size, status.st_mtime_ns, *digests(location, status.st_size))
                self._digests[location] = known
        return File(location.relative_to(directory).as_posix(), location, status.st_size, known[2], known[3])


def _visible_files(directory: Path) -> list[Path]:
    """List a repository's files by path, without names that begin with a dot: the gate, half-written models."""
    found = []
    for parent, directories, names in os.walk(directory):
        directories[:] = [name for name in directories if not name.startswith(".")]
        found += [Path(parent, name) for name in names if not name.startswith(".")]
    return sorted(found)


class Handler(BaseHTTPRequestHandler):
    """Answers one connection's requests."""

    server: HubServer
    protocol_version = "HTTP/1.1"
    server_version = "hub"
    # Headers and body are written apart: without this each small answer waits for the client's acknowledgement.
    disable_nagle_algorithm = True

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: tests read the statistics instead."""

    def do_GET(self) -> None:
        """Answer a GET."""
        self._answer()

    def do_HEAD(self) -> None:
        """Answer a HEAD: as a GET, without the body."""
        self._answer()

    def do_POST(self) -> None:
        """Answer a POST."""
        self._answer()

    def _answer(self) -> None:
        # The body is read before anything can go wrong, or the next request on this connection would begin inside it.
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        split = urlsplit(self.path)
        # Split before decoding: clients send a path inside a repository as one part, its slashes encoded.
        parts = [unquote(part) for part in split.path.strip("/").split("/")]
        try:
            if parts[0].startswith("_"):
                self._own_end_point(parts[0], body)
                return
            self.server.count(requests=1)
            if parts[:2] == ["api", "models"] and len(parts) >= 4:
                self._api(parts[2], parts[3], parts[4:], parse_qs(split.query), body)
            elif len(parts) >= 5 and parts[2] == "resolve" and self.command != "POST":
                self._resolve(self._open_repository(parts[0], parts[1]), parts[3], "/".join(parts[4:]))
            else:
                raise HubError(HTTPStatus.NOT_FOUND, "RepoNotFound", "Repository not found")
        except HubError as error:
            self._send_json({"error": error.message}, error.status, error)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _own_end_point(self, name: str, body: bytes) -> None:
        if name == "_stats" and self.command == "GET":
            self._send_json(self.server.stats())
        elif name == "_faults" and self.command == "POST":
            try:
                faults = Faults(**json.loads(body or b"{}"))
            except (TypeError, ValueError) as error:
                raise HubError(HTTPStatus.BAD_REQUEST, "BadFaults", f"Not a set of faults: {error}") from error
            self.server.set_faults(faults)
            self._send_json({})
        else:
            raise HubError(HTTPStatus.NOT_FOUND, "NoSuchEndPoint", "The hub's own end points: GET _stats, POST _faults")

    def _open_repository(self, owner: str, name: str) -> Repository:
        repository = self.server.repository(owner, name)
        if repository.token is not None and self.headers.get("Authorization") != f"Bearer {repository.token}":
            raise HubError(
                HTTPStatus.UNAUTHORIZED,
                "GatedRepo",
                f"Access to model {repository.name} is restricted. You must have access to it and be authenticated.",
            )
        return repository

    def _api(self, owner: str, name: str, rest: list[str], query: dict[str, list[str]], body: bytes) -> None:
        repository = self._open_repository(owner, name)
        kind = rest[0] if rest else "revision"
        self._check_revision(repository, rest[1] if len(rest) > 1 else "main")
        files = [file for file in repository.files if not self.server.faults.hides(file.path)]
        if kind == "revision" and self.command != "POST":
            self._send_json(_model_info(repository, files, with_blobs=_is_true(query.get("blobs"))))
        elif kind == "tree" and self.command != "POST":
            entries = _tree(files, "/".join(rest[2:]).strip("/"), recursive=_is_true(query.get("recursive")))
            self._send_json(_expanded(entries, repository.commit) if _is_true(query.get("expand")) else entries)
        elif kind == "paths-info" and self.command == "POST":
            paths, expand = self._wanted_paths(body)
            entries = [entry for entry in _tree(files, "", recursive=True) if entry["path"] in paths]
            self._send_json(_expanded(entries, repository.commit) if expand else entries)
        else:
            raise HubError(HTTPStatus.NOT_FOUND, "EntryNotFound", f"This hub does not offer {self.command} {self.path}")

    def _wanted_paths(self, body: bytes) -> tuple[set[str], bool]:
        if "json" in (self.headers.get("Content-Type") or ""):
            wanted = json.loads(body)
            return set(wanted["paths"]), bool(wanted.get("expand"))
        form = parse_qs(body.decode())
        return set(form.get("paths", [])), _is_true(form.get("expand"))

    def _check_revision(self, repository: Repository, revision: str) -> None:
        if revision not in ("main", repository.commit):
            raise HubError(HTTPStatus.NOT_FOUND, "RevisionNotFound", f"Invalid rev id: {revision}")

    def _resolve(self, repository: Repository, revision: str, path: str) -> None:
        self._check_revision(repository, revision)
        faults = self.server.faults
        file = next((file for file in repository.files if file.path == path and not faults.hides(path)), None)
        if file is None:
            raise HubError(HTTPStatus.NOT_FOUND, "EntryNotFound", "Entry not found")
        headers = {
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
            "ETag": f'"{file.etag}"',
            "X-Repo-Commit": repository.commit,
        }
        if file.is_lfs:
            headers.update({"X-Linked-Size": str(file.size_bytes), "X-Linked-Etag": f'"{file.etag}"'})
        try:
            part = wanted_range(self.headers.get("Range"), file.size_bytes)
        except ValueError:
            headers["Content-Range"] = f"bytes */{file.size_bytes}"
            self._send_head(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, headers, 0)
            return
        # A client that resumes a file which has since become another one must get all of the new one.
        if self.headers.get("If-Range", headers["ETag"]) != headers["ETag"]:
            part = None
        start, end = part or (0, file.size_bytes)
        if part is not None:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{file.size_bytes}"
        self._send_head(HTTPStatus.OK if part is None else HTTPStatus.PARTIAL_CONTENT, headers, end - start)
        if self.command != "HEAD":
            self._send_body(file, start, end)

    def _send_body(self, file: File, start: int, end: int) -> None:
        # Taken once: a body in flight keeps its corruption and its end, only the rate may change under way.
        faults = self.server.faults
        stop = end if faults.drop_after is None else min(end, start + faults.drop_after)
        with file.location.open("rb") as stream:
            stream.seek(start)
            offset = start
            while offset < stop:
                rate = self.server.faults.bytes_per_second
                # Ten pieces a second at least, so that a slow download is slow and not one that hangs.
                piece_bytes = min(PIECE_BYTES, stop - offset, max(int(rate / 10), 1) if rate else PIECE_BYTES)
                piece = stream.read(piece_bytes)
                if not piece:
                    break
                if rate:
                    self.server.pace(len(piece), rate)
                self.wfile.write(_corrupted(piece, offset, file) if faults.corrupt and file.is_lfs else piece)
                self.server.count(sent_bytes=len(piece))
                offset += len(piece)
        # Fewer bytes than announced: only the end of the connection tells the client that no more will come.
        if offset < end:
            self.close_connection = True

    def _send_head(self, status: HTTPStatus, headers: dict[str, str], body_bytes: int) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(body_bytes))
        self.end_headers()

    def _send_json(self, content: Any, status: HTTPStatus = HTTPStatus.OK, error: HubError | None = None) -> None:
        body = json.dumps(content).encode()
        headers = {"Content-Type": "application/json; charset=utf-8"}
        if error is not None:
            headers.update({"X-Error-Code": error.code, "X-Error-Message": error.message})
        self._send_head(status, headers, len(body))
        if self.command != "HEAD":
            self.wfile.write(body)


def _is_true(values: list[str] | None) -> bool:
    return values is not None and values[-1].lower() in ("true", "1")


def _model_info(repository: Repository, files: list[File], with_blobs: bool) -> dict[str, Any]:
    siblings: list[dict[str, Any]] = []
    for file in files:
        sibling: dict[str, Any] = {"rfilename": file.path}
        if with_blobs:
            sibling.update({"size": file.size_bytes, "blobId": file.blob_id})
            if file.is_lfs:
                sibling["lfs"] = {"sha256": file.sha256, "size": file.size_bytes, "pointerSize": len(file.pointer)}
        siblings.append(sibling)
    return {
        "id": repository.name,
        "modelId": repository.name,
        "author": repository.name.split("/")[0],
        "sha": repository.commit,
        "private": False,
        "gated": "manual" if repository.token is not None else False,
        "disabled": False,
        "tags": ["gguf"],
        "usedStorage": sum(file.size_bytes for file in files),
        "siblings": siblings,
    }


def _tree(files: list[File], under: str, recursive: bool) -> list[dict[str, Any]]:
    """List files and folders below a path as the hub does. Raises HubError when the path is not a folder."""
    prefix = f"{under}/" if under else ""
    entries: dict[str, dict[str, Any]] = {}
    for file in files:
        if not file.path.startswith(prefix):
            continue
        parts = file.path[len(prefix) :].split("/")
        for depth in range(1, len(parts) if recursive else min(len(parts), 2)):
            folder = prefix + "/".join(parts[:depth])
            entries[folder] = {"type": "directory", "path": folder, "size": 0, "oid": git_blob_sha1(folder.encode())}
        if recursive or len(parts) == 1:
            entry = {"type": "file", "path": file.path, "size": file.size_bytes, "oid": file.blob_id}
            if file.is_lfs:
                entry["lfs"] = {"oid": file.sha256, "size": file.size_bytes, "pointerSize": len(file.pointer)}
            entries[file.path] = entry
    if under and not entries:
        raise HubError(HTTPStatus.NOT_FOUND, "EntryNotFound", f"{under} does not exist")
    return list(entries.values())


def _expanded(entries: list[dict[str, Any]], commit: str) -> list[dict[str, Any]]:
    last_commit = {"id": commit, "title": "Upload", "date": "2026-01-01T00:00:00.000Z"}
    return [{**entry, "lastCommit": last_commit} for entry in entries]


def _corrupted(piece: bytes, offset: int, file: File) -> bytes:
    """Flip the bytes in the middle of the file: a fixed place of it, so that a resumed download meets the same ones."""
    first = max(file.size_bytes // 2 - offset, 0)
    last = min(file.size_bytes // 2 + CORRUPTED_BYTES - offset, len(piece))
    if first >= last:
        return piece
    return piece[:first] + bytes(byte ^ 0xFF for byte in piece[first:last]) + piece[last:]


def make_server(root: Path, bind: str, port: int) -> HubServer:
    """Return a server that listens (on a free port for port 0) and waits for ``serve_forever``.

    Raises OSError when it cannot listen.
    """
    return HubServer(root, bind, port)


def main() -> int:
    """Serve until told to end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="where the repositories lie: ROOT/<owner>/<name>/…")
    parser.add_argument("--bind", default="127.0.0.1", help="the address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="the port to listen on (default: %(default)s)")
    arguments = parser.parse_args()

    # As a container's first process we would otherwise ignore SIGTERM and be waited for, then killed. It is raised in
    # the main thread, where serve_forever runs; the connections' threads do not hold up the end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = make_server(arguments.root, arguments.bind, arguments.port)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        return 0
    finally:
        server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
