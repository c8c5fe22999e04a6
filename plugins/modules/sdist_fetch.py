#!/usr/bin/python
"""Get a pinned source archive of a Python package, through the index that this machine is set up for."""

from __future__ import annotations

import fcntl
import shutil
import sys
import tempfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llamarack.core.plugins.module_utils.build import last_lines
from ansible_collections.llamarack.core.plugins.module_utils.fetch import sha256_of

DOCUMENTATION = r"""
module: sdist_fetch
short_description: Get a pinned source archive of a Python package
description:
  - Downloads the package's source archive with pip, which uses whatever index this machine is set up for, and keeps it
    under its digest. Nothing is compiled.
  - An archive that is there with the right digest is not fetched again. Runs at the same time wait for each other.
  - The package's build requirements must be in the Python environment already, because nothing is downloaded for them.
options:
  package:
    description: Name of the package.
    type: str
    required: true
  version:
    description: Its exact version.
    type: str
    required: true
  sha256:
    description: SHA-256 of the source archive.
    type: str
    required: true
  dest:
    description: Directory that keeps the archives. Made when it is not there.
    type: path
    required: true
  environment:
    description: Extra environment for the package's own metadata script.
    type: dict
    default: {}
author: [Llamarack]
"""

EXAMPLES = r"""
- name: Get the source
  llamarack.core.sdist_fetch:
    package: llama-cpp-python
    version: 0.3.36
    sha256: 832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
    dest: ~/.cache/llamarack/sources
  delegate_to: localhost
"""

RETURN = r"""
path:
  description: Where the archive lies.
  returned: success
  type: str
"""


def download(module: AnsibleModule, directory: Path) -> Path:
    """Have pip put the archive into an empty directory. Ends the module when that fails."""
    package, version, sha256 = (module.params[key] for key in ("package", "version", "sha256"))
    requirement = directory / "requirement.txt"
    requirement.write_text(f"{package}=={version} --hash=sha256:{sha256}\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps", "--no-binary", ":all:"]
    code, out, err = module.run_command(
        [*pip, "--no-build-isolation", "--require-hashes", "--dest", str(directory), "--requirement", str(requirement)],
        environ_update={key: str(value) for key, value in module.params["environment"].items()},
    )
    if code == 0:
        return next(path for path in directory.iterdir() if path != requirement)
    if "DO NOT MATCH THE HASHES" in err:
        module.fail_json(
            msg=f"{package} {version} does not have the SHA-256 {sha256}: correct llama_cpp_source.sha256, "
            "or find out who changed the archive."
        )
    module.fail_json(
        msg=f"The control node cannot download the source of {package} {version}: see its network, its package index "
        f"and that the name and version exist; pip's last words: {last_lines(out + err, 1)}",
        stderr=err,
    )
    raise AssertionError("fail_json ends the module")


def main() -> None:
    """Arguments in, one call, result out."""
    module = AnsibleModule(
        argument_spec={
            "package": {"type": "str", "required": True},
            "version": {"type": "str", "required": True},
            "sha256": {"type": "str", "required": True},
            "dest": {"type": "path", "required": True},
            "environment": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    dest = Path(module.params["dest"])
    archive = dest / f"{module.params['sha256']}.tar.gz"
    if module.check_mode:
        module.exit_json(changed=not archive.exists(), path=str(archive))
    dest.mkdir(parents=True, exist_ok=True)
    with (dest / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive.exists() and sha256_of(archive) == module.params["sha256"]:
            module.exit_json(changed=False, path=str(archive))
        with tempfile.TemporaryDirectory(dir=str(dest)) as directory:
            # pip has compared the digest.
            shutil.move(str(download(module, Path(directory))), str(archive))
    module.exit_json(changed=True, path=str(archive))


if __name__ == "__main__":
    main()
