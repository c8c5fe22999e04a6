"""Ask a server again until it is ready, and show meanwhile how far it is. Runs on the control node."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.llamarack.core.plugins.module_utils.waiting import progress

display = Display()


class ActionModule(ActionBase):
    """``llamarack.core.llama_wait``: the module of that name, once per slice, until it says ready or fails."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call the module with the state of the first call until the deadline that it computes has passed."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        instance = arguments.get("instance")
        begun = time.monotonic()
        while True:
            answer = self._execute_module("llamarack.core.llama_wait", module_args=arguments, task_vars=task_vars)
            seconds = time.monotonic() - begun
            if answer.get("failed") or answer.get("ready"):
                return {**result, **answer}
            if seconds > answer["deadline_seconds"]:
                return {
                    **result,
                    **answer,
                    "failed": True,
                    "msg": (
                        f"Instance {instance} runs, but was not ready after {seconds:.0f} s, three times as long as "
                        "its disk needs at the most: see its log, and whether the disk is slow or the memory swaps."
                    ),
                }
            line = progress(
                str(instance), answer["resident_bytes"], answer["model_bytes"], seconds, answer["deadline_seconds"]
            )
            display.display(f"  {line}")
            arguments["first"] = answer["state"]
