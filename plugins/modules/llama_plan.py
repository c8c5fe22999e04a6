#!/usr/bin/python
"""Plan one instance: what the host is, what was built and the model's header in; decisions with reasons out."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llamarack.core.plugins.module_utils import catalogue, documents
from ansible_collections.llamarack.core.plugins.module_utils.plan import PlanError, make_plan, read_wish

DOCUMENTATION = r"""
module: llama_plan
short_description: Decide how an instance of llama-server runs
description:
  - Reads the host profile, the build and the model's facts, adds the owner's policy, and writes the plan.
  - Every decision carries its reason. What does not fit is refused, with the arithmetic and with what would.
  - In check mode on a host where the documents before it are not there yet, says so and succeeds.
options:
  instance:
    description: Name of the instance.
    type: str
    required: true
  spec:
    description: What the owner wants of it, as C(model), C(port), C(host) and C(policy).
    type: dict
    required: true
  siblings:
    description: The other instances on the host by name, each as O(spec). They need memory and ports, too.
    type: dict
    default: {}
  state_dir:
    description: Where the documents lie.
    type: path
    default: /var/lib/llamarack
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author: [Llamarack]
"""

EXAMPLES = r"""
- name: Plan the instance
  llamarack.core.llama_plan:
    instance: main
    spec:
      model: kimi-k2.5-ud-tq1_0
      port: 8080
      policy:
        fit: ram
        context: 32768
"""

RETURN = r"""
plan:
  description: The plan as it was written, empty when a document before it is not there yet (check mode).
  returned: success
  type: dict
"""


def read_facts(spec: dict[str, Any], instance: str, state_dir: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The model document of an instance, and the instance with its name in it."""
    named = {**spec, "name": instance}
    return documents.read_document(documents.model_path(read_wish(named).model, state_dir), "model"), named


def plan_of(parameters: dict[str, Any]) -> dict[str, Any]:
    """The plan's body, from the documents on the host."""
    state_dir = parameters["state_dir"]
    profile = documents.read_document(f"{state_dir}/host_profile.json", "host_profile")
    build = documents.read_document(f"{state_dir}/build.json", "build")
    model, instance = read_facts(parameters["spec"], parameters["instance"], state_dir)
    siblings = [
        read_facts(spec, name, state_dir)
        for name, spec in sorted(parameters["siblings"].items())
        if name != parameters["instance"]
    ]
    too_old = catalogue.floor_problem(str(model["gguf"]["architecture"]), int(build["build_number"]))
    if too_old:
        raise PlanError(f"{parameters['instance']} cannot be planned: {too_old}.")
    return make_plan(profile, build, model, instance, siblings)


def main() -> None:
    """Arguments in, one call, result out."""
    module = AnsibleModule(
        argument_spec={
            "instance": {"type": "str", "required": True},
            "spec": {"type": "dict", "required": True},
            "siblings": {"type": "dict", "default": {}},
            "state_dir": {"type": "path", "default": documents.STATE_DIR},
        },
        supports_check_mode=True,
    )
    path = documents.plan_path(module.params["instance"], module.params["state_dir"])
    try:
        plan = plan_of(module.params)
        changed, diff = documents.write_document(path, "plan", plan, module.check_mode)
    except documents.DocumentMissing as missing:
        if not module.check_mode:
            module.fail_json(msg=str(missing))
        module.exit_json(changed=True, plan={}, msg=f"it cannot be planned before it is there: {missing}")
    except (PlanError, documents.DocumentError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{path} cannot be written ({error.strerror}): run as root; see that the disk has room.")
    except (KeyError, TypeError, ValueError) as error:
        module.fail_json(
            msg=f"A document under {module.params['state_dir']} is not as expected ({type(error).__name__}: {error}): "
            "run site.yml from its beginning to write them anew."
        )
    module.exit_json(changed=changed, plan=plan, diff=diff)


if __name__ == "__main__":
    main()
