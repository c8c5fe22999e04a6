#!/usr/bin/python
"""Install a llama.cpp beside the others, prove it, and only then make it the current one."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llamarack.core.plugins.module_utils import build, catalogue, documents, proof, releases
from ansible_collections.llamarack.core.plugins.module_utils.fetch import sha256_of

DOCUMENTATION = r"""
module: llama_cpp_release
short_description: Install a llama.cpp, prove it, make it current
description:
  - Copies the programs and their libraries into C(<root>/releases/<build_id>), with their document C(build.json); or
    unpacks them there from what another host packed, and compares every digest.
  - Proves the release before anything points to it, as an unprivileged user - it finds its libraries, names the pinned
    build and commit, lists every GPU of the host that it is for, and computes on it.
  - Sees that every model that an instance of this host uses can be loaded by it.
  - Moves the link C(<root>/current) in one step; C(<root>/previous) names the one before. Whatever fails before leaves
    both as they were.
  - Removes all but the newest releases; never one that a process runs or that a service names.
options:
  root:
    description: Directory of everything that belongs to llama.cpp.
    type: path
    required: true
  build:
    description: The build document from M(llamarack.core.llama_cpp_build), or of the release that is to be current.
    type: dict
    required: true
  build_dir:
    description: >-
      Where the programs were compiled; removed once the release is in place (the compiler cache holds what a rebuild
      needs). Not given when the release is there already.
    type: str
  archive:
    description: What another host packed; removed once the release is in place.
    type: path
  archive_sha256:
    description: Its SHA-256.
    type: str
  current:
    description: Whether it becomes the current one. A host that compiles for others only keeps it.
    type: bool
    default: true
  keep:
    description: How many releases stay.
    type: int
    default: 3
  gpus:
    description: The GPUs of the host profile.
    type: list
    elements: dict
    default: []
  environment:
    description: Environment that the service gives to the server, too.
    type: dict
    default: {}
  user:
    description: Unprivileged user that runs the proof.
    type: str
    required: true
  state_dir:
    description: Directory that gets a link to the document of the current release.
    type: path
    default: /var/lib/llamarack
author: [Llamarack]
"""

EXAMPLES = r"""
- name: Install, prove and switch
  llamarack.core.llama_cpp_release:
    root: /opt/llamarack/llama.cpp
    build: "{{ __llama_cpp_build.build }}"
    build_dir: "{{ __llama_cpp_build.build_dir }}"
    user: llamarack-build
"""

RETURN = r"""
build:
  description: The build document of the release.
  returned: success
  type: dict
release:
  description: Directory of the release.
  returned: success
  type: str
removed:
  description: Builds that were removed.
  returned: success
  type: list
"""

# Without these nothing is served or proved; a distribution may ship no RPC server.
NEEDED = ("llama-server", "llama-bench", "llama-gguf-split", "llama-fit-params")

# Where distributions and Homebrew install programs.
SYSTEM_PREFIXES = ("/usr/", "/opt/homebrew/", "/home/linuxbrew/")

# What says which program a service runs, by service manager.
SERVICES = (
    "etc/systemd/system/llamarack@*.service.d/*.conf",
    "etc/llamarack/*/*.conf",
    "Library/LaunchDaemons/*llamarack*.plist",
)

_SHIPPED = re.compile(r"(llama-.+|ggml-rpc-server|rpc-server|lib[\w.+-]+\.(so[\w.]*|dylib)|[\w.-]+\.metallib)")

AS_IT_WAS = "The current link is as it was."


def sync(path: Path) -> None:
    """Have the kernel write a file or a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_programs(source: Path, target: Path) -> dict[str, str]:
    """Copy programs and libraries, links to neighbours as links; return the files' digests by name.

    A link that leads elsewhere (a distribution's own program) stays one: its package keeps it up to date.

    :raises BuildError: when a program that every instance needs is not there.
    """
    target.mkdir(mode=0o755, parents=True)
    digests = {}
    for path in sorted(source.iterdir()):
        copy = target / path.name
        if not _SHIPPED.fullmatch(path.name):
            continue
        if path.is_symlink():
            destination = path.readlink()
            # The build user made it: nothing but a neighbour's name is taken over, or what root's packages hold.
            copy.symlink_to(destination if is_systems_own(destination) else destination.name)
        elif path.is_file():
            shutil.copyfile(path, copy)
            copy.chmod(0o755)
            sync(copy)
        if copy.is_file() and (not copy.is_symlink() or copy.readlink().is_absolute()):
            digests[path.name] = sha256_of(copy)
    missing = [name for name in NEEDED if name not in digests and not (target / name).exists()]
    if missing:
        raise build.BuildError(f"The build has no {' and no '.join(missing)}: run again, it compiles what is missing.")
    return digests


def is_systems_own(path: Path) -> bool:
    """Whether a file belongs to root and lies where packages install, so that it may be linked to."""
    try:
        return path.is_absolute() and path.stat().st_uid == 0 and str(path).startswith(SYSTEM_PREFIXES)
    except OSError:
        return False


def refusal(document: dict[str, Any], reason: str, output: str) -> build.BuildError:
    """The sentence about a build that failed its proof."""
    return build.BuildError(
        f"The build {document['build_id']} failed its proof and was not taken into use: {reason}. {AS_IT_WAS}\n"
        f"{build.last_lines(output)}".rstrip()
    )


def prove(module: AnsibleModule, programs: Path, document: dict[str, Any]) -> dict[str, Any]:
    """Run the release as the unprivileged user; return the devices that it lists and what it computed on.

    :raises BuildError: with one sentence about the first thing that is not as it should be.
    """
    on_mac = sys.platform == "darwin"
    clean = {"LD_LIBRARY_PATH": "", "HOME": str(programs), "LC_ALL": "C", **module.params["environment"]}
    gpus = module.params["gpus"]

    def ask(*command: str) -> tuple[int, str, str]:
        argv = [*build.as_user(module.params["user"], on_mac), *command]
        code, out, err = module.run_command(argv, environ_update=clean, cwd="/")
        return code, out, err

    if not on_mac:
        for name in [name for name in build.PROGRAMS if (programs / name).exists()]:
            _code, out, err = ask("ldd", str(programs / name))
            unresolved = proof.unresolved_libraries(out + err)
            if unresolved:
                reason = f"{name} does not find {', '.join(unresolved)} (install the package that has it)"
                raise refusal(document, reason, out + err)
    server = str(programs / "llama-server")
    code, out, err = ask(server, "--version")
    problem = proof.version_problem(out + err, document["build_number"], document["commit"])
    if code != 0:
        raise refusal(document, f"llama-server --version ends with status {code}", out + err)
    if problem:
        raise refusal(document, problem, out + err)
    code, out, err = ask(server, "--list-devices")
    devices = proof.listed_devices(out + err)
    if code != 0 or devices is None:
        raise refusal(document, f"llama-server --list-devices lists nothing (status {code})", out + err)
    problem = proof.device_problem(devices, document["backends"], gpus)
    if problem:
        raise refusal(document, problem, out + err)
    benched = proof.benched_devices(document["backends"], devices, gpus)
    with tempfile.TemporaryDirectory(prefix="llamarack-proof-") as directory:
        model = Path(directory, "proof.gguf")
        model.write_bytes(proof.tiny_model())
        Path(directory).chmod(0o755)
        for device in benched:
            code, out, err = ask(str(programs / "llama-bench"), *proof.bench_arguments(str(model), device))
            problem = f"llama-bench ends with status {code}" if code != 0 else proof.bench_problem(out, device)
            if problem:
                raise refusal(document, problem, out + err)
    return {"devices": devices, "computed_on": [device or "CPU" for device in benched]}


def architecture_problem(state_dir: Path, programs: Path, document: dict[str, Any]) -> str | None:
    """Why a model that an instance of this host uses cannot be loaded by the release, or None."""
    library = next((path for path in sorted(programs.glob("libllama.*")) if path.is_file()), None)
    data = library.read_bytes() if library else b""
    for path in sorted(state_dir.glob("instances/*/plan.json")):
        try:
            plan = documents.read_document(str(path), "plan")
            model = documents.read_document(documents.model_path(plan["model"], str(state_dir)), "model")
            architecture = str(model["gguf"]["architecture"])
        except (documents.DocumentError, KeyError, TypeError):
            continue
        floor = catalogue.floor_problem(architecture, document["build_number"])
        if floor:
            return f"instance {path.parent.name} serves {plan['model']}, and {floor}"
        if data and not catalogue.knows_architecture(data, architecture):
            return f"instance {path.parent.name} serves {plan['model']}, whose architecture {architecture} it lacks"
    return None


def link(path: Path, destination: str) -> bool:
    """Make the link point to the destination, in one step; return whether it changed."""
    if path.is_symlink() and str(path.readlink()) == destination:
        return False
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(destination)
    temporary.replace(path)
    sync(path.parent)
    return True


def unpack(module: AnsibleModule, work: Path, document: dict[str, Any]) -> dict[str, Any]:
    """Unpack what another host packed; return its document.

    :raises BuildError: when the archive is not the one that was packed, or not of this build.
    """
    archive, sha256 = Path(module.params["archive"]), module.params["archive_sha256"]
    digest = sha256_of(archive)
    if digest != sha256:
        archive.unlink()
        raise build.BuildError(
            f"The packed build {document['build_id']} arrived with the SHA-256 {digest}, but {sha256} was packed: run "
            f"again, it is sent anew. {AS_IT_WAS}"
        )
    work.mkdir(mode=0o755, parents=True)
    code, out, err = module.run_command(
        ["tar", "--extract", "--zstd", "--no-same-owner", f"--directory={work}", "--strip-components=1",
         f"--file={archive}"]
    )  # fmt: skip
    if code != 0:
        raise build.BuildError(
            f"The packed build {document['build_id']} cannot be unpacked: {build.last_lines(out + err, 1)}. {AS_IT_WAS}"
        )
    wrong = releases.damage(work)
    found = releases.document_of(work) or {}
    if wrong or found.get("build_id") != document["build_id"]:
        raise build.BuildError(
            f"The packed build {document['build_id']} is not whole: {wrong or 'it is another build'}. {AS_IT_WAS}"
        )
    return found


def install(module: AnsibleModule, release: Path) -> None:
    """Copy or unpack, prove, and give the copy its final name."""
    work = release.with_name(f".{release.name}.new")
    shutil.rmtree(work, ignore_errors=True)
    document = dict(module.params["build"])
    try:
        if module.params["archive"]:
            document = unpack(module, work, document)
        else:
            document["binaries"] = copy_programs(Path(module.params["build_dir"], "bin"), work / "bin")
        document.update(prove(module, work / "bin", document))
        documents.write_text_atomically(str(work / "build.json"), documents.render("build", document))
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    for folder in (work / "bin", work, release.parent):
        folder.chmod(0o755)
        sync(folder)
    # Only a damaged release can be in the way: an intact one is not built again.
    old = release.with_name(f".{release.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if release.exists():
        release.replace(old)
    work.replace(release)
    sync(release.parent)
    shutil.rmtree(old, ignore_errors=True)


def switch(module: AnsibleModule, root: Path, build_id: str, fresh: bool) -> bool:
    """Make the release current, and remember which one was; return whether anything changed.

    :raises BuildError: when the release is damaged, fails its proof, or would not load a model that is served here.
    """
    current, previous = root / "current", root / "previous"
    state_link = Path(module.params["state_dir"], "build.json")
    before = releases.target_of(current)
    if before != build_id:
        release = root / "releases" / build_id
        document = releases.document_of(release) or dict(module.params["build"])
        problem = releases.damage(release) if not fresh else None
        if not problem and not fresh:
            # It stood the proof once; the system under it may have changed since.
            prove(module, release / "bin", document)
        problem = problem or architecture_problem(Path(module.params["state_dir"]), release / "bin", document)
        if problem:
            raise refusal(document, problem, "")
        # First: a run that is killed in between finds the way back all the same.
        if before:
            link(previous, f"releases/{before}")
    changed = link(current, f"releases/{build_id}")
    return link(state_link, str(current / "build.json")) or changed


def running_texts(state_dir: Path) -> tuple[list[str], list[str]]:
    """What processes run and have mapped, and what services say that they will run."""
    processes = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            processes.append(f"{(process / 'exe').readlink()}\n{(process / 'maps').read_text(encoding='utf-8')}")
        except (OSError, UnicodeDecodeError):
            continue
    services = []
    for pattern in SERVICES:
        for path in Path("/").glob(pattern.lstrip("/")):
            services.append(path.read_text(encoding="utf-8", errors="replace"))
    for path in state_dir.glob("instances/*/*.json"):
        services.append(path.read_text(encoding="utf-8", errors="replace"))
    return processes, services


def prune(module: AnsibleModule, root: Path) -> list[str]:
    """Remove releases that nothing needs but the last few; return their names."""
    state_dir = Path(module.params["state_dir"])
    needed = {releases.target_of(root / name) for name in ("current", "previous")} | {
        module.params["build"]["build_id"]
    }
    needed |= releases.in_use(root, *running_texts(state_dir))
    gone = releases.superfluous(releases.installed(root), module.params["keep"], needed)
    for name in gone:
        # Under another name first: half a release must not look like one.
        doomed = root / "releases" / f".{name}.old"
        (root / "releases" / name).replace(doomed)
        shutil.rmtree(doomed)
    return gone


def run(module: AnsibleModule) -> dict[str, Any]:
    """Do what the arguments ask for and return the result."""
    params = module.params
    root, build_id = Path(params["root"]), params["build"]["build_id"]
    release = root / "releases" / build_id
    before = releases.target_of(root / "current")
    after = build_id if params["current"] else before
    diff = {
        "before": f"{before}\n",
        "after": f"{after}\n",
        "before_header": str(root / "current"),
        "after_header": str(root / "current"),
    }
    fresh = bool(params["build_dir"] or params["archive"])
    if module.check_mode:
        changed = fresh or before != after
        return {"changed": changed, "build": params["build"], "release": str(release), "removed": [], "diff": diff}
    if fresh:
        install(module, release)
    changed = (switch(module, root, build_id, fresh) if params["current"] else False) or fresh
    # Also what a run left that was killed between the switch and this line.
    shutil.rmtree(root / "build" / build_id, ignore_errors=True)
    if params["archive"]:
        Path(params["archive"]).unlink(missing_ok=True)
    removed = prune(module, root) if params["current"] else []
    body = json.loads((release / "build.json").read_text(encoding="utf-8"))
    return {
        "changed": changed or bool(removed),
        "build": body,
        "release": str(release),
        "removed": removed,
        "diff": diff,
    }


def main() -> None:
    """Arguments in, one call, result out."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "build": {"type": "dict", "required": True},
            "build_dir": {"type": "str"},
            "archive": {"type": "path"},
            "archive_sha256": {"type": "str"},
            "current": {"type": "bool", "default": True},
            "keep": {"type": "int", "default": 3},
            "gpus": {"type": "list", "elements": "dict", "default": []},
            "environment": {"type": "dict", "default": {}},
            "user": {"type": "str", "required": True},
            "state_dir": {"type": "path", "default": documents.STATE_DIR},
        },
        mutually_exclusive=[("build_dir", "archive")],
        required_by={"archive": "archive_sha256"},
        supports_check_mode=True,
    )
    # Whatever root's own is: the service's user reads what is made here.
    os.umask(0o022)
    try:
        module.exit_json(**run(module))
    except build.BuildError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(
            msg=f"The build cannot be installed: {error}. See the disk's free space and rights. {AS_IT_WAS}"
        )


if __name__ == "__main__":
    main()
