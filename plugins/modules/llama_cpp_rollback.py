#!/usr/bin/python
"""Find the release of llama.cpp that a rollback leads to."""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llamarack.core.plugins.module_utils import build, releases

DOCUMENTATION = r"""
module: llama_cpp_rollback
short_description: Find the release of llama.cpp that a rollback leads to
description:
  - The one that was current before, or a named one. Fails with one sentence, and the list of what there is, when there
    is none.
  - Changes nothing; M(llamarack.core.llama_cpp_release) proves it and makes it current.
options:
  root:
    description: Directory of everything that belongs to llama.cpp.
    type: path
    required: true
  to:
    description: Name of a build. Empty for the one before the current.
    type: str
    default: ""
author: [Llamarack]
"""

EXAMPLES = r"""
- name: Find the build before
  llamarack.core.llama_cpp_rollback:
    root: /opt/llamarack/llama.cpp
"""

RETURN = r"""
build:
  description: Its build document.
  returned: success
  type: dict
"""


def main() -> None:
    """Arguments in, one call, result out."""
    module = AnsibleModule(
        argument_spec={"root": {"type": "path", "required": True}, "to": {"type": "str", "default": ""}},
        supports_check_mode=True,
    )
    root = Path(module.params["root"])
    try:
        target = releases.rollback_target(
            module.params["to"],
            releases.target_of(root / "current"),
            releases.target_of(root / "previous"),
            releases.installed(root),
        )
    except build.BuildError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, build=releases.document_of(root / "releases" / target))


if __name__ == "__main__":
    main()
