"""Compare a host's variables with what the roles and the product define. Runs on the control node alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from ansible.plugins.action import ActionBase
from ansible_collections.llamarack.core.plugins.module_utils.variables import misspelt_variables

# plugins/action/check_variables.py → the root, where roles/ and group_vars/ stand (the collection shell links here).
ROOT = Path(__file__).resolve().parents[2]
PRODUCT_PREFIX = "llamarack_"


def role_names() -> list[str]:
    """The roles that there are: their names are the prefixes of their variables."""
    return sorted(path.parent.parent.name for path in (ROOT / "roles").glob("*/meta/argument_specs.yml"))


def known_variables() -> Iterator[str]:
    """Every name that a role's argument specification or the product's group_vars/all defines."""
    for path in (ROOT / "roles").glob("*/meta/argument_specs.yml"):
        for entry_point in yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"].values():
            yield from entry_point.get("options", {})
    for path in (ROOT / "group_vars" / "all").glob("*.yml"):
        yield from yaml.safe_load(path.read_text(encoding="utf-8")) or {}


class ActionModule(ActionBase):
    """``llamarack.core.check_variables``: fails with one sentence per misspelt variable."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Compare the names; the values are never looked at."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        prefixes = [f"{role}_" for role in role_names()] + [PRODUCT_PREFIX]
        misspelt = misspelt_variables(task_vars or {}, known_variables(), prefixes)
        if misspelt:
            return {**result, "failed": True, "msg": " ".join(item.sentence() for item in misspelt)}
        return {**result, "changed": False}
