#!/usr/bin/python
"""Have supervisord run a program section, run it anew, or run it no longer."""

from __future__ import annotations

import re
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: supervised
short_description: Have supervisord run a program
description:
  - For hosts without systemd. Starts supervisord when it does not run, has it read its program sections again, and
    starts, restarts or forgets one of them.
  - A program that ends at once is no error here; M(llamarack.core.llama_wait) tells why it ended.
options:
  name:
    description: Name of the program section. Not needed to shut down.
    type: str
    default: ""
  state:
    description:
      - C(started) and C(restarted) need the section in the configuration, C(absent) that it is gone from it.
      - C(shutdown) ends supervisord itself and all that it runs.
    type: str
    choices: [started, restarted, absent, shutdown]
    default: started
  config:
    description: Configuration of supervisord.
    type: path
    default: /etc/llamarack/supervisord.conf
attributes:
  check_mode:
    support: full
author: [Llamarack]
"""

EXAMPLES = r"""
- name: Run it
  llamarack.core.supervised:
    name: main
"""

RETURN = r"""
status:
  description: What supervisord says of the program.
  returned: success
  type: str
"""

SHUTDOWN_SECONDS = 90


class Supervisord:
    """The daemon, through its own client."""

    def __init__(self, module: AnsibleModule) -> None:
        """Find the programs."""
        self.module = module
        self.config = module.params["config"]
        self.client = module.get_bin_path("supervisorctl")
        self.daemon = module.get_bin_path("supervisord")

    def ask(self, *arguments: str) -> str:
        """What the client prints; its status says little (3 for a program that is stopped)."""
        if not self.client:
            return ""
        _code, out, _err = self.module.run_command([self.client, "-c", self.config, *arguments])
        return str(out).strip()

    def is_up(self) -> bool:
        """Whether the daemon answers: with its process number."""
        return re.fullmatch(r"[1-9]\d*", self.ask("pid")) is not None

    def start(self) -> None:
        """Start the daemon. Ends the module when that fails."""
        if not self.daemon:
            self.module.fail_json(
                msg="There is no supervisord on this host: install the package supervisor, or let the role do it "
                "(system_packages_manage: true)."
            )
        code, out, err = self.module.run_command([self.daemon, "-c", self.config])
        if code != 0:
            self.module.fail_json(msg=f"supervisord does not start (status {code}): {(err or out).strip()[-300:]}")

    def shut_down(self) -> None:
        """End the daemon and wait until it is gone. Ends the module when it stays."""
        self.ask("shutdown")
        end = time.monotonic() + SHUTDOWN_SECONDS
        while self.is_up():
            if time.monotonic() > end:
                self.module.fail_json(msg=f"supervisord did not end within {SHUTDOWN_SECONDS} s: stop it by hand.")
            time.sleep(0.2)


def is_running(status: str) -> bool:
    """Whether a status line is that of a program that runs or is being started."""
    return re.search(r"\b(RUNNING|STARTING)\b", status) is not None


def main() -> None:
    """Arguments in, one call, result out."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "default": ""},
            "state": {
                "type": "str",
                "choices": ["started", "restarted", "absent", "shutdown"],
                "default": "started",
            },
            "config": {"type": "path", "default": "/etc/llamarack/supervisord.conf"},
        },
        supports_check_mode=True,
    )
    name, state = module.params["name"], module.params["state"]
    supervisord = Supervisord(module)
    up = Path(module.params["config"]).exists() and supervisord.is_up()
    status = supervisord.ask("status", name) if up and name else ""
    if state in ("absent", "shutdown"):
        known = up and (state == "shutdown" or (bool(status) and "no such process" not in status))
        if known and not module.check_mode:
            if state == "shutdown":
                supervisord.shut_down()
            else:
                supervisord.ask("update", name)
        module.exit_json(changed=known, status="")
    changed = not is_running(status) or state == "restarted"
    if module.check_mode:
        module.exit_json(changed=changed, status=status)
    if not up:
        # It reads its sections and starts them.
        supervisord.start()
    elif supervisord.ask("update", name):
        changed = True
    elif is_running(status):
        if state == "restarted":
            supervisord.ask("restart", name)
    else:
        supervisord.ask("start", name)
    status = supervisord.ask("status", name)
    if "no such process" in status:
        module.fail_json(msg=f"supervisord knows no program {name}: see that {module.params['config']} includes it.")
    module.exit_json(changed=changed, status=status)


if __name__ == "__main__":
    main()
