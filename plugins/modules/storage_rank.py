#!/usr/bin/python
"""Rank the mounts of a host for models, and write the ranking down."""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llamarack.core.plugins.module_utils import documents, storage

DOCUMENTATION = r"""
module: storage_rank
short_description: Rank the mounts of a host for models
description:
  - Reads the host profile and writes C(model_store.json) - the places for models, best first, and the mounts that are
    none, each with its reason.
  - Local NVMe comes first and the network last; a place where models lie already comes first among those of its kind.
options:
  path:
    description: The owner's place for models. It is then the only one.
    type: str
    default: ""
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
- name: Rank the mounts
  llamarack.core.storage_rank:
"""

RETURN = r"""
model_store:
  description: The document; empty in check mode when there is no host profile yet.
  returned: success
  type: dict
"""


def holds_models(path: str) -> bool:
    """Whether anything lies in a place for models."""
    try:
        return any(Path(path).iterdir())
    except OSError:
        return False


def main() -> None:
    """Arguments in, one call, result out."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "str", "default": ""},
            "state_dir": {"type": "path", "default": documents.STATE_DIR},
        },
        supports_check_mode=True,
    )
    chosen, state_dir = module.params["path"].rstrip("/"), module.params["state_dir"]
    if chosen and not chosen.startswith("/"):
        module.fail_json(msg=f"model_store_path is {chosen}, but should be an absolute path such as /srv/models.")
    try:
        mounts = documents.read_document(f"{state_dir}/host_profile.json", "host_profile")["mounts"]
        used = [path for path in (storage.store_path(str(mount["path"])) for mount in mounts) if holds_models(path)]
        store = storage.chosen_by_owner(chosen, mounts) if chosen else storage.rank(mounts, used)
        changed, diff = documents.write_document(
            f"{state_dir}/model_store.json", "model_store", store, module.check_mode, frozenset({"free_bytes"})
        )
    except documents.DocumentMissing as missing:
        if not module.check_mode:
            module.fail_json(msg=str(missing))
        module.exit_json(changed=True, model_store={}, msg=f"mounts cannot be ranked before it is there: {missing}")
    except documents.DocumentError as error:
        module.fail_json(msg=str(error))
    if not store["candidates"]:
        module.fail_json(
            msg="No mount of this host can hold models ("
            + "; ".join(f"{item['mount']}: {item['reason']}" for item in store["rejected"])
            + "): mount a disk, or set model_store_path.",
            model_store=store,
        )
    module.exit_json(changed=changed, model_store=store, diff=diff)


if __name__ == "__main__":
    main()
