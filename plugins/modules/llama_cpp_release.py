#!/usr/bin/python
"""Install a compiled llama.cpp beside the others, prove it, and only then make it the current one."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llamarack.core.plugins.module_utils import build, documents

DOCUMENTATION = r"""
module: llama_cpp_release
short_description: Install a compiled llama.cpp, prove it, make it current
description:
  - Copies the programs and their libraries into C(<root>/releases/<build_id>), with their document C(build.json).
  - Proves the copy before anything points to it, as an unprivileged user - it finds its libraries, names the pinned
    build and commit, and lists its devices.
  - Moves the link C(<root>/current) in one step. Whatever fails before leaves it as it was.
options:
  root:
    description: Directory of everything that belongs to llama.cpp.
    type: path
    required: true
  build:
    description: The build document from M(llamarack.core.llama_cpp_build).
    type: dict
    required: true
  build_dir:
    description: >-
      Where the programs were compiled; removed once the release is in place (the compiler cache holds what a rebuild
      needs). Empty when the release is there already.
    type: str
    default: ""
  user:
    description: Unprivileged user that runs the proof.
    type: str
    required: true
  state_dir:
    description: Directory that gets a link to the document of the current release.
    type: path
    default: /var/lib/llamarack
author: [Llamarack]
"""

EXAMPLES = r"""
- name: Install, prove and switch
  llamarack.core.llama_cpp_release:
    root: /opt/llamarack/llama.cpp
    build: "{{ __llama_cpp_build.build }}"
    build_dir: "{{ __llama_cpp_build.build_dir }}"
    user: llamarack-build
"""

RETURN = r"""
build:
  description: The build document of the current release.
  returned: success
  type: dict
release:
  description: Directory of the release.
  returned: success
  type: str
"""

_SHIPPED = re.compile(r"(llama-.+|ggml-rpc-server|lib[\w.+-]+\.so[\w.]*)")


def sync(path: Path) -> None:
    """Have the kernel write a file or a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_programs(source: Path, target: Path) -> dict[str, str]:
    """Copy programs and libraries, links as links; return the files' digests by name.

    :raises BuildError: when a program that is shipped was not built.
    """
    target.mkdir(mode=0o755, parents=True)
    digests = {}
    for path in sorted(source.iterdir()):
        copy = target / path.name
        if not _SHIPPED.fullmatch(path.name):
            continue
        if path.is_symlink():
            # The build user made it: nothing but a neighbour's name is taken over.
            copy.symlink_to(path.readlink().name)
        elif path.is_file():
            shutil.copyfile(path, copy)
            copy.chmod(0o755)
            sync(copy)
            digests[path.name] = build.file_sha256(copy)
    missing = [name for name in build.TARGETS if name not in digests]
    if missing:
        raise build.BuildError(f"The build left no {' and no '.join(missing)}: run again, it compiles what is missing.")
    return digests


def prove(module: AnsibleModule, programs: Path, document: dict[str, Any]) -> list[str]:
    """Run the copy as the unprivileged user; return the devices that it lists.

    :raises BuildError: with one sentence about the first thing that is not as it should be.
    """
    clean = {"LD_LIBRARY_PATH": "", "HOME": str(programs), "LC_ALL": "C"}

    def ask(*command: str) -> tuple[int, str]:
        code, out, err = module.run_command(
            ["runuser", "-u", module.params["user"], "--", *command], environ_update=clean, cwd="/"
        )
        return code, out + err

    def refuse(reason: str, output: str) -> build.BuildError:
        return build.BuildError(
            f"The new build {document['build_id']} failed its proof and was not taken into use: {reason}. "
            f"The current link is as it was.\n{build.last_lines(output)}"
        )

    for name in build.TARGETS:
        _code, output = ask("ldd", str(programs / name))
        unresolved = build.unresolved_libraries(output)
        if unresolved:
            raise refuse(f"{name} does not find {', '.join(unresolved)} (install the package that has it)", output)
    server = str(programs / "llama-server")
    code, output = ask(server, "--version")
    problem = build.version_problem(output, document["build_number"], document["commit"])
    if code != 0:
        raise refuse(f"llama-server --version ends with status {code}", output)
    if problem:
        raise refuse(problem, output)
    code, output = ask(server, "--list-devices")
    devices = build.listed_devices(output)
    if code != 0 or devices is None:
        raise refuse(f"llama-server --list-devices lists nothing (status {code})", output)
    return devices


def link(path: Path, destination: str) -> bool:
    """Make the link point to the destination, in one step; return whether it changed."""
    if path.is_symlink() and str(path.readlink()) == destination:
        return False
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(destination)
    temporary.replace(path)
    sync(path.parent)
    return True


def install(module: AnsibleModule, release: Path) -> None:
    """Copy, prove, and give the copy its final name."""
    work = release.with_name(f".{release.name}.new")
    shutil.rmtree(work, ignore_errors=True)
    document = dict(module.params["build"])
    try:
        document["binaries"] = copy_programs(Path(module.params["build_dir"], "bin"), work / "bin")
        document["devices"] = prove(module, work / "bin", document)
        documents.write_text_atomically(str(work / "build.json"), documents.render("build", document))
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    for folder in (work / "bin", work, release.parent):
        folder.chmod(0o755)
        sync(folder)
    # Only a damaged release can be in the way: an intact one is not built again.
    old = release.with_name(f".{release.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if release.exists():
        release.replace(old)
    work.replace(release)
    sync(release.parent)
    shutil.rmtree(old, ignore_errors=True)


def run(module: AnsibleModule) -> dict[str, Any]:
    """Do what the arguments ask for and return the result."""
    params = module.params
    root, build_id = Path(params["root"]), params["build"]["build_id"]
    release, current = root / "releases" / build_id, root / "current"
    destination = f"releases/{build_id}"
    state_link, document = Path(params["state_dir"], "build.json"), str(current / "build.json")
    before = str(current.readlink()) if current.is_symlink() else ""
    diff = {
        "before": f"{before}\n",
        "after": f"{destination}\n",
        "before_header": str(current),
        "after_header": str(current),
    }
    if module.check_mode:
        linked = state_link.is_symlink() and str(state_link.readlink()) == document
        changed = bool(params["build_dir"]) or before != destination or not linked
        return {"changed": changed, "build": params["build"], "release": str(release), "diff": diff}
    changed = bool(params["build_dir"])
    if changed:
        install(module, release)
    changed = link(current, destination) or changed
    changed = link(state_link, document) or changed
    # Also what a run left that was killed between the switch and this line.
    shutil.rmtree(root / "build" / build_id, ignore_errors=True)
    body = json.loads((release / "build.json").read_text(encoding="utf-8"))
    return {"changed": changed, "build": body, "release": str(release), "diff": diff}


def main() -> None:
    """Arguments in, one call, result out."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "build": {"type": "dict", "required": True},
            "build_dir": {"type": "str", "default": ""},
            "user": {"type": "str", "required": True},
            "state_dir": {"type": "path", "default": documents.STATE_DIR},
        },
        supports_check_mode=True,
    )
    # Whatever root's own is: the service's user reads what is made here.
    os.umask(0o022)
    try:
        module.exit_json(**run(module))
    except build.BuildError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"The build cannot be installed: {error}. See the disk's free space and rights.")


if __name__ == "__main__":
    main()
