#!/usr/bin/python
"""Turn a plan into the command line of the llama-server that is installed."""

from __future__ import annotations

import os
from dataclasses import asdict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llamarack.core.plugins.module_utils import diagnosis, documents, flags

DOCUMENTATION = r"""
module: llama_argv
short_description: Turn a plan into the command line of llama-server
description:
  - Asks the installed C(llama-server --help) which options it knows and renders the plan's decisions with those.
  - An option without which the plan cannot be run is an error; what can be left out is left out and returned.
  - Changes nothing.
options:
  instance:
    description: Name of the instance whose plan is rendered. Either this or O(path).
    type: str
  path:
    description: The plan itself. Either this or O(instance).
    type: path
  state_dir:
    description: Where the documents lie.
    type: path
    default: /var/lib/llamarack
  binary:
    description: >-
      The program. A link is followed, so that a server that is started again stays with the build that it was planned
      for.
    type: path
    default: /opt/llamarack/llama.cpp/current/bin/llama-server
  api_key_file:
    description: File with the API key, which the service can read. Without it the server asks for no key.
    type: path
attributes:
  check_mode:
    support: full
author: [Llamarack]
"""

EXAMPLES = r"""
- name: Render the command line
  llamarack.core.llama_argv:
    instance: main
    api_key_file: /etc/llamarack/main/api.key
  register: __argv
"""

RETURN = r"""
argv:
  description: The command line as a list, the program first. Empty in check mode when plan or program are missing.
  returned: success
  type: list
  elements: str
omitted:
  description: Decisions that this build cannot be told, with what that means.
  returned: success
  type: list
  elements: dict
  contains:
    key: {description: The decision., type: str}
    value: {description: What was decided., type: raw}
    reason: {description: What it means., type: str}
"""


class NotThere(Exception):
    """The program is not installed yet."""


def known_options(module: AnsibleModule, binary: str) -> dict[str, str]:
    """What the program's help names.

    :raises NotThere: when there is no program.
    """
    if not os.access(binary, os.X_OK):
        raise NotThere(f"{binary} is not there yet: run the build step first.")
    status, output, errors = module.run_command([binary, "--help"])
    known = flags.parse_help(output)
    if status != 0 or not known:
        found = diagnosis.diagnose(errors + output, status)
        said = f"it ended with {status} and said: {(errors or output).strip()[-300:]!r}."
        why = found[0].sentence() if found else said
        module.fail_json(msg=f"{binary} --help does not run: {why}")
    return known


def main() -> None:
    """Arguments in, one call, result out."""
    module = AnsibleModule(
        argument_spec={
            "instance": {"type": "str"},
            "path": {"type": "path"},
            "state_dir": {"type": "path", "default": documents.STATE_DIR},
            "binary": {"type": "path", "default": "/opt/llamarack/llama.cpp/current/bin/llama-server"},
            "api_key_file": {"type": "path"},
        },
        required_one_of=[("instance", "path")],
        mutually_exclusive=[("instance", "path")],
        supports_check_mode=True,
    )
    parameters = module.params
    path = parameters["path"] or documents.plan_path(parameters["instance"], parameters["state_dir"])
    try:
        plan = documents.read_document(path, "plan")
        binary = os.path.realpath(parameters["binary"])
        known = known_options(module, binary)
        extra = {"api_key_file": parameters["api_key_file"]} if parameters["api_key_file"] else {}
        rendered = flags.render(plan["decisions"], known, extra, plan["build_id"])
    except (NotThere, documents.DocumentMissing) as missing:
        if not module.check_mode:
            module.fail_json(msg=str(missing))
        module.exit_json(changed=False, argv=[], omitted=[], msg=str(missing))
    except (flags.FlagError, documents.DocumentError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=False,
        argv=[binary, *rendered.arguments],
        omitted=[asdict(item) for item in rendered.omitted],
    )


if __name__ == "__main__":
    main()
