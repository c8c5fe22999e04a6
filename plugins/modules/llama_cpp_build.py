#!/usr/bin/python
"""Compile one llama.cpp, unless its release is there."""

from __future__ import annotations

import json
import os
import platform
import pwd
import shlex
import shutil
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llamarack.core.plugins.module_utils import build, documents

DOCUMENTATION = r"""
module: llama_cpp_build
short_description: Compile one llama.cpp, unless its release is there
description:
  - Computes the name of the build from everything that shapes it, and compiles it in C(<root>/build/<build_id>) as an
    unprivileged user. When C(<root>/releases/<build_id>) is there, nothing is compiled.
  - A build that was killed goes on where it stopped.
  - Nothing is installed; M(llamarack.core.llama_cpp_release) does that.
options:
  root:
    description: Directory of everything that belongs to llama.cpp.
    type: path
    required: true
  source:
    description: The owner's C(llama_cpp_source).
    type: dict
    required: true
  source_path:
    description: Where its tree is.
    type: path
    required: true
  build_number:
    description: Number of the upstream release, told to the build.
    type: int
    required: true
  commit:
    description: Upstream commit, told to the build.
    type: str
    required: true
  backend:
    description: What it computes on.
    type: list
    elements: str
    default: [cpu]
  native:
    description: Whether to use every instruction of this host's CPU. Such a build runs on equal CPUs only.
    type: bool
    default: true
  web_ui:
    description: Whether the build may download the web page and embed it.
    type: bool
    default: false
  cmake_options:
    description: The owner's CMake options, merged last.
    type: dict
    default: {}
  jobs:
    description: Compilers at once. 0 = one per usable CPU, and 2 GiB of memory for each.
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
    source: "{{ llama_cpp_source }}"
    source_path: /opt/llamarack/llama.cpp/src/832db0699007f1be
    build_number: 11311
    commit: 0c1e57098bba43ac29e6e3b677cdceebdd22334f
    user: llamarack-build
"""

RETURN = r"""
build:
  description: The build document as far as it is known; absent in check mode on a host that has no compiler yet.
  returned: success
  type: dict
build_dir:
  description: Where the programs were compiled. Empty when the release was there already.
  returned: success
  type: str
"""


def is_whole(release: Path) -> bool:
    """Whether a release's document is there and each of its files has the digest that stands in it."""
    try:
        text = (release / "build.json").read_text(encoding="utf-8")
        binaries = documents.parse(text, "build", str(release))["binaries"]
        return all(build.file_sha256(release / "bin" / name) == digest for name, digest in binaries.items())
    except (OSError, KeyError, documents.DocumentError):
        return False


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


def describe(module: AnsibleModule, compiler: build.Tool | None) -> build.Build:
    """The build that the arguments ask for, on this host."""
    params = module.params
    source = {key: params["source"].get(key) for key in ("kind", "sha256", "commit", "subdirectory")}
    cpuinfo = Path("/proc/cpuinfo")
    native = params["native"] and cpuinfo.exists()
    return build.Build(
        source={key: value for key, value in source.items() if value},
        build_number=params["build_number"],
        commit=params["commit"],
        compiler=compiler.text if compiler else "",
        architecture=platform.machine(),
        native=params["native"],
        cpu=build.shaping_cpu(cpuinfo.read_text(encoding="utf-8")) if native else "",
        backends=tuple(params["backend"]),
        web_ui=params["web_ui"],
        options=params["cmake_options"],
    )


def compile_it(module: AnsibleModule, wanted: build.Build, directory: Path) -> None:
    """Configure, unless that is done, and compile. Ends the module with one sentence when either fails."""
    root, user = module.params["root"], module.params["user"]
    own(directory.parent, user, recurse=False)
    ccache = module.params["ccache"] and module.get_bin_path("ccache") is not None
    if ccache:
        own(Path(module.params["ccache_dir"]), user, recurse=True)
    jobs = build.compile_jobs(module.params["jobs"], *usable(module.params["state_dir"]))
    environment = build.compiler_environment(root, module.params["ccache_dir"])
    commands = [build.compile_argv(str(directory), jobs)]
    if not (directory / "build.ninja").exists():
        # CMake writes this file last: without it the directory is half configured, and a half cache misleads CMake.
        shutil.rmtree(directory, ignore_errors=True)
        commands.insert(0, build.configure_argv(wanted, module.params["source_path"], str(directory), ccache))
    own(directory, user, recurse=False)
    for command in commands:
        code, out, err = module.run_command(["runuser", "-u", user, "--", *command], environ_update=environment)
        if code != 0:
            module.fail_json(
                msg=build.build_failure(out + err, code, jobs), build_dir=str(directory), cmd=shlex.join(command)
            )


def run(module: AnsibleModule) -> dict[str, Any]:
    """Do what the arguments ask for and return the result."""
    params = module.params
    tools = build.find_tools(module.get_bin_path, module.run_command, params["cmake_options"])
    problem = build.toolchain_problem(tools)
    if problem and module.check_mode:
        return {"changed": True, "build_dir": "", "msg": f"would be compiled once the tools are there; now: {problem}"}
    if problem:
        raise build.BuildError(problem[0].upper() + problem[1:])
    wanted = describe(module, tools["c++"])
    document = wanted.document()
    if is_whole(Path(params["root"], "releases", wanted.build_id)):
        return {"changed": False, "build": document, "build_dir": ""}
    directory = Path(params["root"], "build", wanted.build_id)
    plan = {"build": document, "directory": str(directory)}
    if not module.check_mode:
        compile_it(module, wanted, directory)
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
            "source": {"type": "dict", "required": True},
            "source_path": {"type": "path", "required": True},
            "build_number": {"type": "int", "required": True},
            "commit": {"type": "str", "required": True},
            "backend": {"type": "list", "elements": "str", "default": ["cpu"]},
            "native": {"type": "bool", "default": True},
            "web_ui": {"type": "bool", "default": False},
            "cmake_options": {"type": "dict", "default": {}},
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
