#!/usr/bin/python
"""See that the instances may listen where they should: to those who have the key, on ports that are free."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.llamarack.core.plugins.module_utils import ports

DOCUMENTATION = r"""
module: llama_ports
short_description: See that the instances may listen where they should
description:
  - Fails with one sentence when an instance without a key would be reached from other machines.
  - Fails with one sentence that names the program when another one listens on the port of an instance.
  - A llama-server that was started from a release below O(root) is no stranger.
  - Changes nothing.
options:
  instances:
    description: Instances by name; C(port), C(host) and C(api_key_required) of each are looked at.
    type: dict
    required: true
  root:
    description: Directory of the releases.
    type: path
    required: true
attributes:
  check_mode:
    support: full
author: [Llamarack]
"""

EXAMPLES = r"""
- name: See that it may listen there
  llamarack.core.llama_ports:
    instances: {main: {port: 8080, host: 127.0.0.1}}
    root: /opt/llamarack/llama.cpp
"""

RETURN = r"""
"""


def owner_of(inode: int) -> tuple[int, str, str]:
    """Process number, name and program of the holder of a socket; zeros and blanks when it cannot be seen."""
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(descriptor.readlink()) != f"socket:[{inode}]":
                continue
            process = descriptor.parents[1]
            return int(process.name), (process / "comm").read_text().strip(), str((process / "exe").readlink())
        except OSError:
            # It ended while we looked, or belongs to someone else.
            continue
    return 0, "", ""


def problem(name: str, instance: dict[str, Any], listeners: list[ports.Listener], root: str) -> str:
    """The sentence about what is in an instance's way, or nothing."""
    host, port = str(instance.get("host") or "127.0.0.1"), int(instance["port"])
    if not boolean(instance.get("api_key_required", True)) and not ports.is_loopback(host):
        return (
            f"Instance {name} would listen on {host} without an API key, for everyone to use: remove "
            "api_key_required: false, or the public host."
        )
    for listener in ports.in_the_way(listeners, host, port):
        pid, command, program = owner_of(listener.inode)
        if program.startswith(f"{root.rstrip('/')}/"):
            continue
        who = f"{command} (process {pid})" if pid else "another program"
        return (
            f"Port {port} of instance {name} is in use: {who} listens on {listener.address}:{port}; "
            "stop it, or give the instance another port."
        )
    return ""


def main() -> None:
    """Arguments in, one call, result out."""
    module = AnsibleModule(
        argument_spec={
            "instances": {"type": "dict", "required": True},
            "root": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    listeners = [entry for table in tables if table.exists() for entry in ports.parse_listeners(table.read_text())]
    for name, instance in sorted(module.params["instances"].items()):
        try:
            said = problem(name, instance, listeners, module.params["root"])
        except (KeyError, TypeError, ValueError):
            said = f"Instance {name} has no usable port: give it a whole number such as 8080."
        if said:
            module.fail_json(msg=said)
    module.exit_json(changed=False)


if __name__ == "__main__":
    main()
