"""Command lines as the service managers read them. Each has rules of its own, and neither is a shell's."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence

from ansible.errors import AnsibleFilterError

# What needs no quotes in either.
PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./-]+")


def refuse_control_characters(argv: Sequence[str]) -> None:
    """A line break in an argument would begin a new setting.

    :raises AnsibleFilterError: for any control character.
    """
    for argument in argv:
        if re.search(r"[\x00-\x1f\x7f]", argument):
            raise AnsibleFilterError(f"{argument!r} holds a control character: no service can be started with it.")


def systemd_command(argv: Sequence[str], expand: Sequence[str] = ()) -> str:
    """The value of ``ExecStart=`` (systemd.service(5), "Command lines").

    :param expand: arguments in which systemd shall put its own variables; everywhere else ``$`` and ``%`` are
        themselves.
    """
    refuse_control_characters(argv)
    words = []
    for argument in argv:
        if argument in expand:
            words.append(argument)
            continue
        escaped = argument.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
        words.append(escaped if PLAIN.fullmatch(argument) else f'"{escaped}"')
    return " ".join(words)


def supervisor_command(argv: Sequence[str]) -> str:
    """The value of ``command=`` of a supervisord program: shlex words; ``%`` expands, and " ;" begins a comment.

    :raises AnsibleFilterError: for an argument that its configuration cannot carry.
    """
    refuse_control_characters(argv)
    for argument in argv:
        if re.search(r"\s[;#]", f" {argument}"):
            raise AnsibleFilterError(f"{argument!r} would begin a comment in supervisord's configuration: rename it.")
    return " ".join(shlex.quote(argument).replace("%", "%%") for argument in argv)


class FilterModule:
    """``llamarack.core.systemd_command`` and ``llamarack.core.supervisor_command``."""

    def filters(self) -> dict[str, Callable[..., str]]:
        """Names of the filters."""
        return {"systemd_command": systemd_command, "supervisor_command": supervisor_command}
