#!/usr/bin/python
"""Documentation of the action plugin of the same name; nothing runs on the managed host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: check_variables
short_description: Refuse misspelt variables
description:
  - Compares every variable of the host that begins with a role's name with the argument specifications of the roles
    and with the product's C(group_vars/all), and fails with one sentence for each that nothing reads.
  - Runs on the control node; the host is not contacted.
options: {}
author: [Llamarack]
"""

EXAMPLES = r"""
- name: Refuse misspelt variables
  llamarack.core.check_variables:
"""

RETURN = r"""
"""
