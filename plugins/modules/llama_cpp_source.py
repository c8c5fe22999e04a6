#!/usr/bin/python
"""Put one pinned llama.cpp source tree in its place, whole or not at all."""

from __future__ import annotations

import os
import pwd
import shutil
import tarfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llamarack.core.plugins.module_utils.build import BuildError, source_id
from ansible_collections.llamarack.core.plugins.module_utils.fetch import sha256_of

DOCUMENTATION = r"""
module: llama_cpp_source
short_description: Put a pinned llama.cpp source tree in its place
description:
  - Checks what pins the source and names its directory after it, C(<root>/src/<id>).
  - Without O(archive) and O(checkout) it only looks whether the tree is there.
  - An archive is verified, unpacked beside the target and renamed into place, so that a run killed half way leaves no
    tree that could be taken for whole. A checkout is compared with the pinned commit and renamed likewise.
options:
  source:
    description: The owner's C(llama_cpp_source).
    type: dict
    required: true
  build_number:
    description: What the build will call itself; the tag of a git source must agree with it.
    type: int
    required: true
  root:
    description: Directory of everything that belongs to llama.cpp.
    type: path
    required: true
  user:
    description: Owner of the tree. May be absent in check mode.
    type: str
    required: true
  archive:
    description: A tar archive on the host. It is removed when it has been unpacked, and when its digest is wrong.
    type: path
  checkout:
    description: A git working tree on the host, beside the target. It is renamed to it.
    type: path
  head:
    description: The commit that the checkout is at.
    type: str
author: [Llamarack]
"""

EXAMPLES = r"""
- name: Unpack the source
  llamarack.core.llama_cpp_source:
    source: {kind: archive, url: https://example.org/llama.cpp-b12345.tar.gz, sha256: "…"}
    build_number: 12345
    root: /opt/llamarack/llama.cpp
    user: llamarack-build
    archive: /opt/llamarack/llama.cpp/src/.0123456789abcdef.archive
"""

RETURN = r"""
id:
  description: First 16 hex digits of the digest or commit.
  returned: success
  type: str
path:
  description: Where the tree is, or will be.
  returned: success
  type: str
present:
  description: Whether the tree is there.
  returned: success
  type: bool
"""


def verify(archive: Path, sha256: str) -> None:
    """Compare the archive's digest; a wrong archive is removed, so that the next run fetches it again.

    :raises BuildError: when it differs.
    """
    digest = sha256_of(archive)
    if digest != sha256:
        archive.unlink()
        raise BuildError(
            f"The source archive has the SHA-256 {digest}, but {sha256} is pinned: correct "
            "llama_cpp_source.sha256, or find out who changed the archive. Nothing was unpacked."
        )


def unpack(archive: Path, directory: Path) -> Path:
    """Unpack into an empty directory and return the tree's root: the one directory that archives usually hold.

    :raises BuildError: when it is not a tar archive.
    """
    try:
        with tarfile.open(archive) as tar:
            # Older Pythons have no filter; the archive is the pinned one either way.
            tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _path: member)
            tar.extractall(directory)
    except (tarfile.TarError, EOFError) as error:
        raise BuildError(f"The source archive cannot be unpacked ({error}): pin one in tar format.") from error
    entries = list(directory.iterdir())
    return entries[0] if len(entries) == 1 and entries[0].is_dir() else directory


def give_to(tree: Path, user: str) -> None:
    """Make the user own the tree."""
    account = pwd.getpwnam(user)
    for folder, _folders, files in os.walk(tree):
        os.chown(folder, account.pw_uid, account.pw_gid)
        for name in files:
            os.chown(Path(folder, name), account.pw_uid, account.pw_gid, follow_symlinks=False)


def put_in_place(tree: Path, subdirectory: str, target: Path, user: str) -> None:
    """Rename the part of the tree that is llama.cpp to its final name.

    :raises BuildError: when it is not there.
    """
    part = tree / subdirectory if subdirectory else tree
    if not (part / "CMakeLists.txt").is_file():
        raise BuildError(
            f"The source has no {subdirectory + '/' if subdirectory else ''}CMakeLists.txt: "
            "correct llama_cpp_source.subdirectory."
        )
    give_to(part, user)
    part.chmod(0o755)
    part.replace(target)


def run(module: AnsibleModule) -> dict[str, object]:
    """Do what the arguments ask for and return the result."""
    source, user = module.params["source"], module.params["user"]
    identity = source_id(source, module.params["build_number"])
    target = Path(module.params["root"], "src", identity)
    present = (target / "CMakeLists.txt").is_file()
    found = {"id": identity, "path": str(target), "present": present, "changed": False}
    given = module.params["archive"] or module.params["checkout"]
    if present:
        # A tree that someone unpacked as root.
        strange = not module.check_mode and target.stat().st_uid != pwd.getpwnam(user).pw_uid
        if strange:
            give_to(target, user)
        return {**found, "changed": strange}
    if module.check_mode or not given:
        return {**found, "changed": bool(given)}
    work = target.with_name(f".{identity}.new")
    shutil.rmtree(work, ignore_errors=True)
    subdirectory = source.get("subdirectory") or ""
    if module.params["archive"]:
        archive = Path(module.params["archive"])
        verify(archive, source["sha256"])
        work.mkdir(mode=0o755, parents=True)
        put_in_place(unpack(archive, work), subdirectory, target, user)
        shutil.rmtree(work, ignore_errors=True)
        archive.unlink()
    else:
        checkout = Path(module.params["checkout"])
        if module.params["head"] != source["commit"]:
            shutil.rmtree(checkout)
            raise BuildError(
                f"The tag {source['tag']} of {source['repository']} is at commit {module.params['head']}, but "
                f"{source['commit']} is pinned: correct llama_cpp_source, or find out who moved the tag."
            )
        put_in_place(checkout, subdirectory, target, user)
        shutil.rmtree(checkout, ignore_errors=True)
    return {**found, "present": True, "changed": True}


def main() -> None:
    """Arguments in, one call, result out."""
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "dict", "required": True},
            "build_number": {"type": "int", "required": True},
            "root": {"type": "path", "required": True},
            "user": {"type": "str", "required": True},
            "archive": {"type": "path"},
            "checkout": {"type": "path"},
            "head": {"type": "str"},
        },
        mutually_exclusive=[("archive", "checkout")],
        required_by={"checkout": "head"},
        supports_check_mode=True,
    )
    # Whatever root's own is: the unprivileged user walks through what is made here.
    os.umask(0o022)
    try:
        module.exit_json(**run(module))
    except BuildError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"The source tree cannot be put in place: {error}. See the disk's free space and rights.")


if __name__ == "__main__":
    main()
