#!/usr/bin/python
"""Decide which llama.cpp a host needs, and see whether it is there."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llamarack.core.plugins.module_utils import backends, build, releases, toolkits

DOCUMENTATION = r"""
module: llama_cpp_choice
short_description: Decide which llama.cpp a host needs
description:
  - Reads the host profile and the owner's wishes, and decides backends, targets and whether the build may travel. Each
    decision carries its reason. A wish that the host has no hardware for is an error.
  - Says whether a whole release of just that is installed already, and whether the host could compile one.
  - Changes nothing.
options:
  root:
    description: Directory of everything that belongs to llama.cpp.
    type: path
    required: true
  profile:
    description: The host profile.
    type: dict
    required: true
  source:
    description: The owner's C(llama_cpp_source).
    type: dict
    required: true
  build_number:
    description: Number of the upstream release, told to the build.
    type: int
    required: true
  commit:
    description: Upstream commit, told to the build.
    type: str
    required: true
  backends:
    description: C(auto), or what it computes on.
    type: list
    elements: str
    default: [auto]
  gpu_targets:
    description: GPUs to compile for. Empty = those that are here.
    type: list
    elements: str
    default: []
  native:
    description: Whether to use every instruction of this host's CPU. Such a build runs on equal CPUs only.
    type: bool
    default: true
  flash_attention:
    description: For which pairs of cache types FlashAttention is compiled.
    type: str
    choices: [all, used]
    default: all
  cache_pairs:
    description: Pairs that instances use, for example C(q8_0-q8_0).
    type: list
    elements: str
    default: []
  web_ui:
    description: Whether the build may download the web page and embed it.
    type: bool
    default: false
  cmake_options:
    description: The owner's CMake options, merged last.
    type: dict
    default: {}
  builder:
    description: Whether the host compiles for others.
    type: bool
    default: false
  wanted:
    description: Whether the host needs a build itself.
    type: bool
    default: true
author: [Llamarack]
"""

EXAMPLES = r"""
- name: Decide what to build
  llamarack.core.llama_cpp_choice:
    root: /opt/llamarack/llama.cpp
    profile: "{{ ansible_facts['llamarack_host_profile'] }}"
    source: "{{ llama_cpp_source }}"
    build_number: 11311
    commit: 0c1e57098bba43ac29e6e3b677cdceebdd22334f
"""

RETURN = r"""
ansible_facts:
  description: >-
    C(llamarack_build_choice): the recipe (empty where none is wanted), its name C(recipe_id), the C(release) that
    is installed (or null), what the host itself would compile (C(pins)), system, architecture, drivers, and whether
    there is a compiler.
  returned: success
  type: dict
decisions:
  description: One line for each decision, with its reason.
  returned: success
  type: list
"""


def system_name() -> str:
    """Distribution and version, as builds depend on them: ``debian 12``, ``macos 15``."""
    if sys.platform == "darwin":
        return f"macos {platform.mac_ver()[0].partition('.')[0]}"
    try:
        text = Path("/etc/os-release").read_text(encoding="utf-8")
    except OSError:
        return "linux"
    return build.system_of(text)


def installed_rocm(module: AnsibleModule) -> str | None:
    """The version of the ROCm on this host, None where there is none."""
    found = toolkits.find_rocm(module.get_bin_path, module.run_command)
    return found.version if found else None


def run(module: AnsibleModule) -> dict[str, Any]:
    """Do what the arguments ask for and return the result."""
    params, profile = module.params, module.params["profile"]
    amd = any(gpu["vendor"] == "AMD" for gpu in profile["gpus"])
    # A pin is checked on a host that needs no build, too: it was meant for it.
    choice = backends.choose(
        backends.Wish(
            backends=tuple(params["backends"]),
            targets=tuple(params["gpu_targets"]),
            native=params["native"],
            builder=params["builder"],
            flash_attention=params["flash_attention"],
            cache_pairs=tuple(params["cache_pairs"]),
        ),
        profile,
        installed_rocm(module) if amd else None,
    )
    cpuinfo = Path("/proc/cpuinfo")
    cpu = build.shaping_cpu(cpuinfo.read_text(encoding="utf-8")) if cpuinfo.exists() else profile["cpu"]["model"]
    recipe = build.Recipe(
        source=build.pinned_source(params["source"]),
        build_number=params["build_number"],
        commit=params["commit"],
        system=system_name(),
        architecture=platform.machine(),
        backends=choice.backends,
        targets=choice.targets,
        native=choice.native,
        cpu=cpu if choice.native else "",
        cache_pairs=choice.cache_pairs,
        web_ui=params["web_ui"],
        options=params["cmake_options"],
    )
    wanted = params["wanted"]
    document = {
        "recipe_id": recipe.recipe_id if wanted else "",
        "recipe": recipe.document() if wanted else {},
        "pins": [
            recipe.build_number,
            recipe.commit,
            *(f"{key} {value}" for key, value in sorted(recipe.source.items())),
        ],
        "system": recipe.system,
        "architecture": recipe.architecture,
        "release": releases.with_recipe(Path(params["root"]), recipe.recipe_id) if wanted else None,
        "drivers": sorted({gpu["driver_version"] for gpu in profile["gpus"] if gpu["vendor"] == "NVIDIA"} - {None}),
        "compiler": all(module.get_bin_path(name) for name in ("c++", "cmake", "ninja")),
        "builder": params["builder"],
    }
    return {
        "changed": False,
        "ansible_facts": {"llamarack_build_choice": document},
        "decisions": [f"{one.key}: {_words(one.value)} - {one.reason}" for one in choice.decisions] if wanted else [],
    }


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, list) else str(value)


def main() -> None:
    """Arguments in, one call, result out."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "profile": {"type": "dict", "required": True},
            "source": {"type": "dict", "required": True},
            "build_number": {"type": "int", "required": True},
            "commit": {"type": "str", "required": True},
            "backends": {"type": "list", "elements": "str", "default": ["auto"]},
            "gpu_targets": {"type": "list", "elements": "str", "default": []},
            "native": {"type": "bool", "default": True},
            "flash_attention": {"type": "str", "choices": ["all", "used"], "default": "all"},
            "cache_pairs": {"type": "list", "elements": "str", "default": []},
            "web_ui": {"type": "bool", "default": False},
            "cmake_options": {"type": "dict", "default": {}},
            "builder": {"type": "bool", "default": False},
            "wanted": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**run(module))
    except build.BuildError as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
