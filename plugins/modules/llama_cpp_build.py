#!/usr/bin/python
"""Compile one llama.cpp, unless its release is there."""

from __future__ import annotations

import json
import os
import pwd
import shlex
import shutil
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llamarack.core.plugins.module_utils import build, documents, releases

DOCUMENTATION = r"""
module: llama_cpp_build
short_description: Compile one llama.cpp, unless its release is there
description:
  - Computes the name of the build from its recipe and the tools that compile it, and compiles it in
    C(<root>/build/<build_id>) as an unprivileged user. When C(<root>/releases/<build_id>) is there, nothing is.
  - A build that was killed goes on where it stopped.
  - Libraries of the GPU's toolkit that the programs need are laid beside them.
  - Nothing is installed; M(llamarack.core.llama_cpp_release) does that.
options:
  root:
    description: Directory of everything that belongs to llama.cpp.
    type: path
    required: true
  recipe:
    description: The recipe from M(llamarack.core.llama_cpp_choice).
    type: dict
    required: true
  toolchain:
    description: The toolchain document from M(llamarack.core.toolchain_facts).
    type: dict
    required: true
  source_path:
    description: Where the source tree is.
    type: path
    required: true
  jobs:
    description: >-
      Compilers at once. 0 = one per usable CPU, and 2 GiB of memory for each, 4 GiB where code for a GPU is compiled.
    type: int
    default: 0
  user:
    description: Unprivileged user that compiles.
    type: str
    required: true
  ccache:
    description: Whether to use ccache, where it is installed.
    type: bool
    default: true
  ccache_dir:
    description: Where ccache keeps its objects.
    type: path
    default: /var/cache/llamarack/ccache
  state_dir:
    description: Where the host profile lies; it says which CPUs and how much memory are usable.
    type: path
    default: /var/lib/llamarack
author: [Llamarack]
"""

EXAMPLES = r"""
- name: Compile llama.cpp
  llamarack.core.llama_cpp_build:
    root: /opt/llamarack/llama.cpp
    recipe: "{{ ansible_facts['llamarack_build_choice'].recipe }}"
    toolchain: "{{ ansible_facts['llamarack_toolchain'] }}"
    source_path: /opt/llamarack/llama.cpp/src/832db0699007f1be
    user: llamarack-build
"""

RETURN = r"""
build:
  description: The build document as far as it is known; absent in check mode on a host without source or compiler yet.
  returned: success
  type: dict
build_dir:
  description: Where the programs were compiled. Empty when the release was there already.
  returned: success
  type: str
"""


def usable(state_dir: str) -> tuple[float, int]:
    """Usable CPUs and bytes of memory: from the host profile, else what this process sees."""
    try:
        profile = documents.read_document(f"{state_dir}/host_profile.json", "host_profile")
        cpus = float(len(profile["cpu"]["usable_cpus"]))
        return min(cpus, profile["cpu"].get("quota_cpus") or cpus), int(profile["memory"]["usable_bytes"])
    except (documents.DocumentError, KeyError, TypeError):
        return float(len(os.sched_getaffinity(0))), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def own(path: Path, user: str, recurse: bool) -> None:
    """Make a directory that the user may write in. One that came with other owners (a mount) is taken over once."""
    path.mkdir(mode=0o755, parents=True, exist_ok=True)
    account = pwd.getpwnam(user)
    if path.stat().st_uid == account.pw_uid:
        return
    if recurse:
        for folder, folders, files in os.walk(path):
            for name in folders + files:
                os.chown(Path(folder, name), account.pw_uid, account.pw_gid, follow_symlinks=False)
    # Last: a run that is killed before starts over.
    os.chown(path, account.pw_uid, account.pw_gid)


def describe(module: AnsibleModule) -> build.Build | None:
    """The build that the arguments ask for, on this host; None while it has no source tree or no compiler."""
    toolchain = module.params["toolchain"]
    options = Path(module.params["source_path"], "ggml", "CMakeLists.txt")
    if not options.is_file() or not toolchain.get("programs"):
        return None
    known = build.tree_options(options.read_text(encoding="utf-8"))
    return build.Build(build.recipe_of(module.params["recipe"]), toolchain, known)


def compile_it(module: AnsibleModule, wanted: build.Build, directory: Path) -> None:
    """Configure, unless that is done, and compile. Ends the module with one sentence when either fails."""
    params = module.params
    root, user = params["root"], params["user"]
    own(directory.parent, user, recurse=False)
    ccache = params["ccache"] and module.get_bin_path("ccache") is not None
    if ccache:
        own(Path(params["ccache_dir"]), user, recurse=True)
    on_gpu = bool(wanted.recipe.gpu_backends)
    jobs = build.compile_jobs(params["jobs"], *usable(params["state_dir"]), on_gpu)
    environment = build.compiler_environment(root, params["ccache_dir"])
    for section in wanted.recipe.gpu_backends:
        environment.update((wanted.toolchain.get(section) or {}).get("environment", {}))
    commands = [build.compile_argv(wanted, str(directory), jobs)]
    if not (directory / "build.ninja").exists():
        # CMake writes this file last: without it the directory is half configured, and a half cache misleads CMake.
        shutil.rmtree(directory, ignore_errors=True)
        commands.insert(0, build.configure_argv(wanted, params["source_path"], str(directory), ccache))
    own(directory, user, recurse=False)
    for command in commands:
        code, out, err = module.run_command(
            [*build.as_user(user, build.on_mac(wanted.recipe)), *command], environ_update=environment
        )
        if code != 0:
            module.fail_json(
                msg=build.build_failure(out + err, code, jobs), build_dir=str(directory), cmd=shlex.join(command)
            )


def add_libraries(wanted: build.Build, directory: Path) -> None:
    """Lay the toolkit's libraries beside the programs: the hosts that run them need no toolkit."""
    for backend in wanted.recipe.gpu_backends:
        for library in (wanted.toolchain.get(backend) or {}).get("libraries", []):
            shutil.copyfile(library, directory / "bin" / Path(library).name)


def run(module: AnsibleModule) -> dict[str, Any]:
    """Do what the arguments ask for and return the result."""
    params = module.params
    wanted = describe(module)
    if wanted is None and module.check_mode:
        return {"changed": True, "build_dir": "", "msg": "would be compiled once source and compiler are there"}
    if wanted is None:
        raise build.BuildError(f"There is no llama.cpp source in {params['source_path']}: run playbooks/build.yml.")
    document = wanted.document()
    if releases.is_whole(Path(params["root"], "releases", wanted.build_id)):
        return {"changed": False, "build": document, "build_dir": ""}
    directory = Path(params["root"], "build", wanted.build_id)
    plan = {"build": document, "directory": str(directory)}
    if not module.check_mode:
        compile_it(module, wanted, directory)
        add_libraries(wanted, directory)
    return {
        "changed": True,
        "build": document,
        "build_dir": str(directory),
        "diff": {"before": "", "after": json.dumps(plan, indent=2) + "\n", "after_header": f"build {wanted.build_id}"},
    }


def main() -> None:
    """Arguments in, one call, result out."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "recipe": {"type": "dict", "required": True},
            "toolchain": {"type": "dict", "required": True},
            "source_path": {"type": "path", "required": True},
            "jobs": {"type": "int", "default": 0},
            "user": {"type": "str", "required": True},
            "ccache": {"type": "bool", "default": True},
            "ccache_dir": {"type": "path", "default": "/var/cache/llamarack/ccache"},
            "state_dir": {"type": "path", "default": documents.STATE_DIR},
        },
        supports_check_mode=True,
    )
    # Whatever root's own is: the unprivileged user walks through what is made here.
    os.umask(0o022)
    try:
        module.exit_json(**run(module))
    except build.BuildError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"llama.cpp cannot be compiled here: {error}. See the disk's free space and rights.")


if __name__ == "__main__":
    main()
