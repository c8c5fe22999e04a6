#!/usr/bin/python
"""See whether a host can compile llama.cpp, and with what."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llamarack.core.plugins.module_utils import build

DOCUMENTATION = r"""
module: toolchain_facts
short_description: See whether a host can compile llama.cpp
description:
  - Looks for the compilers, CMake and Ninja, and fails with one sentence when one is missing or too old (in
    check mode, warns).
  - Changes nothing.
options: {}
author: [Llamarack]
"""

EXAMPLES = r"""
- name: See whether llama.cpp can be compiled here
  llamarack.core.toolchain_facts:
"""

RETURN = r"""
tools:
  description: The first line that each program prints about its version.
  returned: success
  type: dict
"""


def main() -> None:
    """Arguments in, one call, result out."""
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    tools = build.find_tools(module.get_bin_path, module.run_command)
    problem = build.toolchain_problem(tools)
    if problem and not module.check_mode:
        module.fail_json(msg=problem[0].upper() + problem[1:])
    if problem:
        # On a fresh host the packages are not there yet, and their own task has said that they would be.
        module.warn(problem[0].upper() + problem[1:])
    module.exit_json(changed=False, tools={name: tool.text for name, tool in tools.items() if tool})


if __name__ == "__main__":
    main()
