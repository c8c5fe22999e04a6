#!/usr/bin/python
"""See that the instances may listen where they should: to those who have the key, on ports that are free."""

from __future__ import annotations

import pwd
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
  - A socket of O(user) is no stranger's.
  - Changes nothing.
options:
  instances:
    description: Instances by name; C(port), C(host) and C(api_key_required) of each are looked at.
    type: dict
    required: true
  user:
    description: User that the instances run as.
    type: str
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
    user: llamarack
"""

RETURN = r"""
"""


def owner_of(listener: ports.Listener) -> str:
    """Who holds a socket, as far as it can be seen: in a container root may not look into other users' processes."""
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(descriptor.readlink()) == f"socket:[{listener.inode}]":
                process = descriptor.parents[1]
                return f"{(process / 'comm').read_text().strip()} (process {process.name})"
        except OSError:
            # It ended while we looked, or belongs to someone else.
            continue
    try:
        return f"a program of the user {pwd.getpwuid(listener.uid).pw_name}"
    except KeyError:
        return f"a program of the user number {listener.uid}"


def user_number(name: str) -> int:
    """The number of a user; -1 on a host where it is not there yet."""
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return -1


def problem(name: str, instance: dict[str, Any], listeners: list[ports.Listener], uid: int) -> str:
    """The sentence about what is in an instance's way, or nothing."""
    host, port = str(instance.get("host") or "127.0.0.1"), int(instance["port"])
    if not boolean(instance.get("api_key_required", True)) and not ports.is_loopback(host):
        return (
            f"Instance {name} would listen on {host} without an API key, for everyone to use: remove "
            "api_key_required: false, or the public host."
        )
    for listener in ports.in_the_way(listeners, host, port):
        if listener.uid != uid:
            return (
                f"Port {port} of instance {name} is in use: {owner_of(listener)} listens on "
                f"{listener.address}:{port}; stop it, or give the instance another port."
            )
    return ""


def main() -> None:
    """Arguments in, one call, result out."""
    module = AnsibleModule(
        argument_spec={
            "instances": {"type": "dict", "required": True},
            "user": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    listeners = [entry for table in tables if table.exists() for entry in ports.parse_listeners(table.read_text())]
    uid = user_number(module.params["user"])
    for name, instance in sorted(module.params["instances"].items()):
        try:
            said = problem(name, instance, listeners, uid)
        except (KeyError, TypeError, ValueError):
            said = f"Instance {name} has no usable port: give it a whole number such as 8080."
        if said:
            module.fail_json(msg=said)
    module.exit_json(changed=False)


if __name__ == "__main__":
    main()
