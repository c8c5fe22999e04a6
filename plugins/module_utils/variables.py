"""Which variables of an inventory are misspelt.

Argument specifications say what each role understands, but Ansible compares only the values of names that it knows:
``llama_server_instnaces`` is silently nobody's. Here every name that looks like one of ours is compared with the names
that exist.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

# A name this close to one of ours, without our prefix, is taken for a slip of the finger (lama_server_port).
SLIP_RATIO = 0.93


@dataclass(frozen=True)
class Misspelt:
    """A variable that nothing reads, and the name that was probably meant ("" when none is near)."""

    name: str
    nearest: str

    def sentence(self) -> str:
        """What to tell the owner."""
        if self.nearest:
            return f"{self.name} is not a variable of Llamarack; did you mean {self.nearest}?"
        return f"{self.name} is not a variable of Llamarack; remove it, or see the roles' defaults for what there is."


def misspelt_variables(names: Iterable[str], known: Iterable[str], prefixes: Iterable[str]) -> list[Misspelt]:
    """The names that begin with one of the prefixes (or nearly are a known name) and are not known, sorted.

    :param names: all variable names of a host.
    :param known: the names that the argument specifications and the product's group_vars define.
    :param prefixes: what our names begin with, ``_`` included.
    """
    known_names = sorted(set(known))
    ours = tuple(prefixes)
    found = []
    for name in sorted(set(names) - set(known_names)):
        if name.startswith(ours):
            near = difflib.get_close_matches(name, known_names, n=1, cutoff=0.6)
        elif name.startswith("_"):
            continue
        else:
            near = difflib.get_close_matches(name, known_names, n=1, cutoff=SLIP_RATIO)
            if not near:
                continue
        found.append(Misspelt(name, near[0] if near else ""))
    return found
