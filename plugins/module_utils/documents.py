"""The named documents that flow one way through the product, and how they are read and written.

host profile + model facts + build facts + policy → plan → unit → acceptance record.

Each document is one JSON file with a ``schema`` version and a ``kind``. A role reads the documents that come before
its own and writes its own; nothing flows back, so each step can be run alone, diffed and replayed from a recording.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

SCHEMA = 1

STATE_DIR = "/var/lib/llamarack"
HOST_PROFILE = f"{STATE_DIR}/host_profile.json"
BUILD = f"{STATE_DIR}/build.json"
MODEL_STORE = f"{STATE_DIR}/model_store.json"


class DocumentError(Exception):
    """A document cannot be used; the message says which, why and what to do."""


class DocumentMissing(DocumentError):
    """A document that should have been written by an earlier step is not there."""


def model_path(model: str, state_dir: str = STATE_DIR) -> str:
    """Where the facts of a catalogue entry lie on the host."""
    return f"{state_dir}/models/{model}/model.json"


def plan_path(instance: str, state_dir: str = STATE_DIR) -> str:
    """Where the plan of an instance lies on the host."""
    return f"{state_dir}/instances/{instance}/plan.json"


def acceptance_path(instance: str, state_dir: str = STATE_DIR) -> str:
    """Where the acceptance record of an instance lies on the host."""
    return f"{state_dir}/instances/{instance}/acceptance.json"


def endpoint(host: str, port: int) -> str:
    """The address at which the host itself reaches a server that listens on an address."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


def render(kind: str, body: dict[str, Any]) -> str:
    """The text of a document: sorted by meaning (as given), indented, with a trailing newline."""
    return json.dumps({"kind": kind, "schema": SCHEMA, **body}, indent=2, ensure_ascii=False) + "\n"


def parse(text: str, kind: str, path: str = "<text>") -> dict[str, Any]:
    """The body of a document.

    :raises DocumentError: when the text is not JSON, not of this kind, or of another schema.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise DocumentError(
            f"{path} is not valid JSON ({error}): delete it and run the step that writes it again."
        ) from error
    if not isinstance(document, dict) or document.get("kind") != kind:
        raise DocumentError(f"{path} is not a {kind} document: delete it and run its step again.")
    if document.get("schema") != SCHEMA:
        raise DocumentError(
            f"{path} has schema {document.get('schema')}, this version reads {SCHEMA}: run site.yml to write it anew."
        )
    return document


def read_document(path: str, kind: str) -> dict[str, Any]:
    """Read a document from disk.

    :raises DocumentMissing: when there is no such file.
    :raises DocumentError: when it cannot be read or is not what it should be.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise DocumentMissing(
            f"{path} is not there yet: run the step that writes the {kind} document first."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise DocumentError(f"{path} cannot be read ({error}): check its owner and mode.") from error
    return parse(text, kind, path)


def write_text_atomically(path: str, text: str, mode: int = 0o644) -> None:
    """Write beside the target, flush to the disk, then rename: a reader sees the old text or the new, never half."""
    target = Path(path)
    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=str(target.parent))
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def without(value: Any, keys: frozenset[str]) -> Any:
    """A copy of JSON data without the named keys, at any depth."""
    if isinstance(value, dict):
        return {key: without(item, keys) for key, item in value.items() if key not in keys}
    if isinstance(value, list):
        return [without(item, keys) for item in value]
    return value


def write_document(
    path: str, kind: str, body: dict[str, Any], check_mode: bool, volatile: frozenset[str] = frozenset()
) -> tuple[bool, dict[str, str]]:
    """Write a document if what it says changed.

    :param volatile: keys, at any depth, that differ from run to run without meaning a change (free bytes, measured
        speeds). A document that differs in nothing else is left as it is.
    :returns: whether it changed (or would, in check mode), and a diff in Ansible's shape.
    """
    after = render(kind, body)
    try:
        before = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        before = ""
    changed = before != after
    if changed and before and volatile:
        try:
            changed = without(json.loads(before), volatile) != without(json.loads(after), volatile)
        except ValueError:
            changed = True
    if changed and not check_mode:
        write_text_atomically(path, after)
    return changed, {
        "before": before,
        "after": after if changed else before,
        "before_header": path,
        "after_header": path,
    }
