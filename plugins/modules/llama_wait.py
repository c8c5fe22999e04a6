#!/usr/bin/python
"""Wait a while for a server that loads its model, and tell how far it is, or why it ended."""

from __future__ import annotations

import re
import time
import urllib.request
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llamarack.core.plugins.module_utils import diagnosis, documents, waiting

DOCUMENTATION = r"""
module: llama_wait
short_description: Wait until a server answers that it is ready
description:
  - Polls C(/health) until the server is ready, its process ended, or the deadline has passed. The deadline follows from
    the model's bytes and the disk that they lie on; meanwhile a line now and then says how much of the model is in
    memory.
  - When the process ends, fails at once with the last lines of its log and, for messages that are known, what to do.
  - An action plugin of the same name asks again and shows the progress; this module waits for one O(slice_seconds).
options:
  instance:
    description: Name of the instance. Its plan says which model it loads and where it listens.
    type: str
    required: true
  manager:
    description: What supervises the service.
    type: str
    choices: [systemd, supervisord]
    required: true
  slice_seconds:
    description: How long one call waits.
    type: int
    default: 10
  first:
    description: The service's state at the beginning of the wait; set by the action plugin.
    type: dict
  state_dir:
    description: Where the documents lie.
    type: path
    default: /var/lib/llamarack
attributes:
  check_mode:
    support: full
author: [Llamarack]
"""

EXAMPLES = r"""
- name: Wait until it is ready
  llamarack.core.llama_wait:
    instance: main
    manager: systemd
"""

RETURN = r"""
ready:
  description: Whether the server answers.
  returned: success
  type: bool
state:
  description: C(running), C(pid) and C(restarts) of the service.
  returned: success
  type: dict
deadline_seconds:
  description: How long it may load.
  returned: success
  type: int
resident_bytes:
  description: What the process holds in memory.
  returned: success
  type: int
model_bytes:
  description: What it is loading.
  returned: success
  type: int
"""

POLL_SECONDS = 0.25
LOG_LINES = 200
SHOWN_LINES = 15


class Service:
    """The instance as its service manager sees it."""

    def __init__(self, module: AnsibleModule, instance: str, manager: str) -> None:
        """Remember how to ask."""
        self.module = module
        self.instance = instance
        self.manager = manager

    def output(self, *command: str) -> str:
        """What a command prints."""
        _code, out, _err = self.module.run_command(list(command))
        return str(out)

    def state(self) -> dict[str, Any]:
        """Whether a process runs, which, and how often it has been started again."""
        if self.manager == "systemd":
            asked = ("MainPID", "NRestarts", "ActiveState", "SubState", "ExecMainStatus", "ExecMainCode")
            lines = self.output("systemctl", "show", "--property", ",".join(asked), f"llamarack@{self.instance}")
            values = dict(line.partition("=")[::2] for line in lines.splitlines())
            return {
                "running": values.get("ActiveState") in ("active", "reloading")
                or (values.get("ActiveState") == "activating" and values.get("SubState") != "auto-restart"),
                "pid": int(values.get("MainPID") or 0),
                "restarts": int(values.get("NRestarts") or 0),
                "exit_status": int(values.get("ExecMainStatus") or 0),
                # CLD_KILLED and CLD_DUMPED of waitid(2): the status is a signal then.
                "signalled": values.get("ExecMainCode") in ("2", "3"),
            }
        line = self.output("supervisorctl", "-c", "/etc/llamarack/supervisord.conf", "status", self.instance)
        pid = re.search(r"\bpid (\d+)", line)
        return {
            "running": " STARTING " in f"{line} " or " RUNNING " in line,
            "pid": int(pid[1]) if pid else 0,
            "restarts": 0,
            "exit_status": 0,
            "signalled": False,
        }

    def log(self) -> str:
        """The last lines of what the server printed."""
        if self.manager == "systemd":
            unit = f"llamarack@{self.instance}"
            return self.output("journalctl", "--unit", unit, "--lines", str(LOG_LINES), "--no-pager", "--output", "cat")
        path = Path(f"/var/log/llamarack/{self.instance}.log")
        try:
            with path.open("rb") as stream:
                stream.seek(max(0, path.stat().st_size - 100_000))
                text = stream.read().decode("utf-8", "replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-LOG_LINES:])


def is_healthy(url: str) -> bool:
    """Whether the server says that it is ready."""
    try:
        # No proxy stands between a server and itself.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False


def resident_bytes(pid: int) -> int:
    """What a process holds in memory, mapped files included; 0 when that cannot be seen."""
    try:
        found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def why_it_ended(service: Service, state: dict[str, Any]) -> str:
    """The sentence about a process that ended, and the end of its log."""
    log = service.log()
    status = state["exit_status"]
    signal = status if state["signalled"] else None
    found = diagnosis.diagnose(log, None if state["signalled"] else status, signal)
    ended = f"by signal {status}" if signal else f"with status {status}" if status else "by itself"
    what = found[0].sentence() if found else "Its last lines say why."
    tail = "\n".join([line for line in log.splitlines() if line.strip()][-SHOWN_LINES:])
    return f"Instance {service.instance} ended {ended} before it was ready: {what}\n{tail}"


def main() -> None:
    """Arguments in, one call, result out."""
    module = AnsibleModule(
        argument_spec={
            "instance": {"type": "str", "required": True},
            "manager": {"type": "str", "choices": ["systemd", "supervisord"], "required": True},
            "slice_seconds": {"type": "int", "default": 10},
            "first": {"type": "dict"},
            "state_dir": {"type": "path", "default": documents.STATE_DIR},
        },
        supports_check_mode=True,
    )
    instance, state_dir = module.params["instance"], module.params["state_dir"]
    if module.check_mode:
        module.exit_json(changed=False, ready=True)
    service = Service(module, instance, module.params["manager"])
    try:
        plan = documents.read_document(documents.plan_path(instance, state_dir), "plan")
        profile = documents.read_document(f"{state_dir}/host_profile.json", "host_profile")
    except documents.DocumentError as error:
        module.fail_json(msg=str(error))
    decided = {item["key"]: item["value"] for item in plan["decisions"]}
    url = f"{documents.endpoint(decided['host'], decided['port'])}/health"
    end = time.monotonic() + module.params["slice_seconds"]
    first = module.params["first"] or service.state()
    while True:
        state = service.state()
        ready = is_healthy(url)
        if not ready and waiting.has_died(state, first):
            module.fail_json(msg=why_it_ended(service, state), died=True)
        if ready or time.monotonic() >= end:
            break
        time.sleep(POLL_SECONDS)
    module.exit_json(
        changed=False,
        ready=ready,
        # A unit that is only just starting has no process yet.
        state={**state, "pid": first["pid"] or state["pid"], "restarts": first["restarts"]},
        deadline_seconds=waiting.deadline_seconds(plan["model_bytes"], waiting.mount_of(profile, plan["model_path"])),
        resident_bytes=resident_bytes(state["pid"]),
        model_bytes=plan["model_bytes"],
    )


if __name__ == "__main__":
    main()
