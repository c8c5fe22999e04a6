#!/usr/bin/python
"""Keep packed builds on the control node, so that what one host compiled reaches every other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llamarack.core.plugins.module_utils import documents
from ansible_collections.llamarack.core.plugins.module_utils.fetch import sha256_of

DOCUMENTATION = r"""
module: llama_cpp_shelf
short_description: Keep packed builds on the control node
description:
  - Lists the packed builds of a directory, C(<build_id>.tar.zst) with its document C(<build_id>.json).
  - Takes one in, and removes the oldest beyond the number that is kept, and what interrupted runs left.
options:
  path:
    description: The directory.
    type: path
    required: true
  build:
    description: Document of a build that was just fetched into C(.incoming-<build_id>.tar.zst) of the directory.
    type: dict
  keep:
    description: How many builds stay; the newest do.
    type: int
    default: 12
author: [Llamarack]
"""

EXAMPLES = r"""
- name: Look at what the control node keeps
  llamarack.core.llama_cpp_shelf:
    path: ~/.cache/llamarack/builds
  delegate_to: localhost
"""

RETURN = r"""
builds:
  description: >-
    The documents of the packed builds, newest first, each with C(archive) (its path) and C(archive_sha256).
  returned: success
  type: list
"""


def packed(shelf: Path) -> list[dict[str, Any]]:
    """The documents of what is there, newest first. A document without its archive, or the other way, is not there."""
    found = []
    for path in sorted(shelf.glob("[!.]*.json"), key=lambda one: one.stat().st_mtime, reverse=True):
        archive = path.with_suffix(".tar.zst")
        try:
            document = documents.read_document(str(path), "build")
        except documents.DocumentError:
            continue
        # Sizes tell what was cut off at a glance; the receiving host compares the digest of every byte.
        if archive.is_file() and archive.stat().st_size == document["archive_bytes"]:
            found.append({**document, "archive": str(archive)})
    return found


def take_in(shelf: Path, document: dict[str, Any]) -> None:
    """Give a fetched archive its name, and write its document last: without one it is not there."""
    name = document["build_id"]
    incoming, archive = shelf / f".incoming-{name}.tar.zst", shelf / f"{name}.tar.zst"
    facts = {"archive_sha256": sha256_of(incoming), "archive_bytes": incoming.stat().st_size}
    incoming.replace(archive)
    body = {key: value for key, value in document.items() if key not in ("kind", "schema")}
    documents.write_text_atomically(str(shelf / f"{name}.json"), documents.render("build", {**body, **facts}))


def tidy(shelf: Path, keep: int) -> bool:
    """Remove what is beyond the number that is kept; return whether anything was."""
    names = {document["build_id"] for document in packed(shelf)[: max(1, keep)]}
    gone = [
        path
        for path in shelf.iterdir()
        if path.name.endswith((".json", ".tar.zst")) and path.name.rpartition(".tar.zst")[0] not in names
        and path.name.rpartition(".json")[0] not in names
    ]  # fmt: skip
    for path in gone:
        path.unlink()
    return bool(gone)


def main() -> None:
    """Arguments in, one call, result out."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "build": {"type": "dict"},
            "keep": {"type": "int", "default": 12},
        },
        supports_check_mode=True,
    )
    shelf, changed = Path(module.params["path"]), False
    try:
        if module.params["build"] and not module.check_mode:
            take_in(shelf, module.params["build"])
            tidy(shelf, module.params["keep"])
            changed = True
        builds = packed(shelf) if shelf.is_dir() else []
    except OSError as error:
        module.fail_json(msg=f"The control node cannot keep builds in {shelf}: {error}. See its free space and rights.")
    module.exit_json(changed=changed, builds=builds)


if __name__ == "__main__":
    main()
