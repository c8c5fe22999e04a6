#!/usr/bin/python
"""Read the documents of a host and say what they come to."""

from __future__ import annotations

import shutil
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llamarack.core.plugins.module_utils import documents, report

DOCUMENTATION = r"""
module: llama_report
short_description: Summarise what runs on a host
description:
  - Reads the host profile and the plan and acceptance record of each instance, and returns lines for a person.
  - Changes nothing.
options:
  state_dir:
    description: Where the documents lie.
    type: path
    default: /var/lib/llamarack
  config_dir:
    description: Where the instances' keys lie. Only their paths are told.
    type: path
    default: /etc/llamarack
author: [Llamarack]
"""

EXAMPLES = r"""
- name: Summarise what runs on the host
  llamarack.core.llama_report:
  register: __report
"""

RETURN = r"""
lines:
  description: The summary, a line each.
  returned: success
  type: list
  elements: str
"""


def lines_of(state_dir: str, config_dir: str) -> list[str]:
    """The machine, then each instance that has a plan; one without a record says so."""
    lines = [report.host_line(documents.read_document(f"{state_dir}/host_profile.json", "host_profile"))]
    for plan_file in sorted(Path(state_dir).glob("instances/*/plan.json")):
        plan = documents.read_document(str(plan_file), "plan")
        key_file = Path(config_dir, plan["instance"], "api.key")
        cat = "sudo cat" if shutil.which("sudo") else "cat"
        try:
            record = documents.read_document(documents.acceptance_path(plan["instance"], state_dir), "acceptance")
        except documents.DocumentMissing:
            lines.append(f"{plan['instance']}: planned, but not accepted: run site.yml, or playbooks/accept.yml")
            continue
        lines += report.instance_lines(plan, record, f"{cat} {key_file}" if key_file.exists() else "")
    if len(lines) == 1:
        lines.append("no instance: give the host one in llama_server_instances")
    return lines


def main() -> None:
    """Arguments in, one call, result out."""
    module = AnsibleModule(
        argument_spec={
            "state_dir": {"type": "path", "default": documents.STATE_DIR},
            "config_dir": {"type": "path", "default": "/etc/llamarack"},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(changed=False, lines=lines_of(module.params["state_dir"], module.params["config_dir"]))
    except documents.DocumentMissing as missing:
        if not module.check_mode:
            module.fail_json(msg=str(missing))
        module.exit_json(changed=False, lines=[f"nothing yet: {missing}"])
    except documents.DocumentError as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
