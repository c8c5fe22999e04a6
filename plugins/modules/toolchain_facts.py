#!/usr/bin/python
"""See what a host has to compile llama.cpp with, and whether it is enough."""

from __future__ import annotations

import sys
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llamarack.core.plugins.module_utils import toolkits

DOCUMENTATION = r"""
module: toolchain_facts
short_description: See what a host has to compile llama.cpp with
description:
  - Looks for compilers, CMake, Ninja and the toolkits of the GPUs, takes those that fit cards and drivers, and fails
    with one sentence when something is missing or too old (in check mode, warns).
  - Every CUDA toolkit on the host is looked at; which one is first on PATH does not count.
  - Changes nothing.
options:
  backends:
    description: What is to be built.
    type: list
    elements: str
    default: [cpu]
  gpu_targets:
    description: GPUs that code is made for, for example C(89) or C(gfx1100).
    type: list
    elements: str
    default: []
  gpu_drivers:
    description: Versions of the NVIDIA drivers that the build is for.
    type: list
    elements: str
    default: []
  cmake_options:
    description: The owner's CMake options; compilers that they name are looked at.
    type: dict
    default: {}
  cuda_root:
    description: The CUDA toolkit to take. Empty = whichever fits.
    type: str
    default: ""
  build_tools:
    description: A folder with a CMake and a Ninja that win over the system's, where it exists.
    type: str
    default: ""
  complain:
    description: Whether to fail. False only says in C(problem) what is missing.
    type: bool
    default: true
author: [Llamarack]
"""

EXAMPLES = r"""
- name: See whether llama.cpp can be compiled here
  llamarack.core.toolchain_facts:
    backends: [cuda]
    gpu_targets: ["89"]
"""

RETURN = r"""
ansible_facts:
  description: >-
    C(llamarack_toolchain): the C++ C(compiler)'s own words, C(programs) (paths), C(tools) (versions), and a section for
    each wanted GPU backend with its version, its places and the reason for it.
  returned: success
  type: dict
problem:
  description: The sentence about the first thing that is missing or too old. Empty where nothing is.
  returned: success
  type: str
lacking:
  description: What of C(cmake), C(ninja) and C(cuda) is missing or too old; the role can install these itself.
  returned: success
  type: list
"""


def sections(module: AnsibleModule, compiler: toolkits.Tool | None) -> tuple[dict[str, Any], dict[str, str]]:
    """The sections of the wanted GPU backends, and a sentence for each that cannot be had."""
    params = module.params
    gfx = [target for target in params["gpu_targets"] if target.startswith("gfx")]
    capabilities = [target for target in params["gpu_targets"] if target not in gfx]
    which, run = module.get_bin_path, module.run_command
    found: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for backend in sorted(set(params["backends"]) - {"cpu"}):
        if backend == "cuda":
            there = toolkits.find_cuda(which, run, params["cuda_root"])
            section, problem = toolkits.cuda_section(there, capabilities, params["gpu_drivers"], compiler, which)
        elif backend == "hip":
            section, problem = toolkits.hip_section(toolkits.find_rocm(which, run), gfx)
        elif backend == "vulkan":
            section, problem = toolkits.vulkan_section(which, run)
        else:
            section, problem = toolkits.metal_section(run)
        found[backend] = section
        if problem:
            problems[backend] = problem
    return found, problems


def main() -> None:
    """Arguments in, one call, result out."""
    module = AnsibleModule(
        argument_spec={
            "backends": {"type": "list", "elements": "str", "default": ["cpu"]},
            "gpu_targets": {"type": "list", "elements": "str", "default": []},
            "gpu_drivers": {"type": "list", "elements": "str", "default": []},
            "cmake_options": {"type": "dict", "default": {}},
            "cuda_root": {"type": "str", "default": ""},
            "build_tools": {"type": "str", "default": ""},
            "complain": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    which, ask, on_mac = module.get_bin_path, module.run_command, sys.platform == "darwin"
    tools = toolkits.find_tools(which, ask, params["cmake_options"], params["build_tools"], on_mac)
    found, problems = sections(module, tools["c++"])
    problem = toolkits.tools_problem(tools, params["backends"]) or next(iter(problems.values()), "")
    if problem and params["complain"] and not module.check_mode:
        module.fail_json(msg=problem)
    if problem and params["complain"]:
        # On a fresh host the packages are not there yet, and their own task has said that they would be.
        module.warn(problem)
    present = {name: tool for name, tool in tools.items() if tool}
    document = {
        "compiler": present["c++"].text if "c++" in present else "",
        # All or none: a build is only described where it could be configured.
        "programs": {name: present[name].path for name in ("cmake", "ninja")} if not problem else {},
        "tools": {name: tool.text for name, tool in present.items()},
        **found,
    }
    module.exit_json(
        changed=False,
        ansible_facts={"llamarack_toolchain": document},
        problem=problem,
        lacking=[*toolkits.build_tools_lacking(tools, params["backends"]), *(["cuda"] if "cuda" in problems else [])],
    )


if __name__ == "__main__":
    main()
