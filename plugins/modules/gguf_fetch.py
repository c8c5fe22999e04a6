#!/usr/bin/python
"""Have one model of the catalogue on the host: every split, verified, under its final name, or none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llamarack.core.plugins.module_utils import documents, fetch, gguf, hub
from ansible_collections.llamarack.core.plugins.module_utils.memory import gib

DOCUMENTATION = r"""
module: gguf_fetch
short_description: Have one model of the catalogue on the host
description:
  - Lists the splits of a quant from the hub at one commit, sees that they have room, downloads what is missing (several
    at a time, going on where a killed run stopped), compares each with the hub's SHA-256, reads the headers to see that
    the set is complete, and renames it into place. Writes C(models/<model>/model.json).
  - A second run reads nothing again and asks the hub nothing, as long as size, time and inode of each split are as
    they were.
  - A model of source C(local) is taken from a directory as it lies there, with the same checks of its headers.
  - For source C(hub) this must run in a Python that has huggingface_hub.
options:
  name:
    description: The model's name in the catalogue.
    type: str
    required: true
  entry:
    description: >-
      Its entry, with C(repository), C(revision), C(quant) and C(alias); C(source) is C(hub) (default) or C(local),
      which needs C(path).
    type: dict
    required: true
  endpoint:
    description: Address of the hub.
    type: str
    default: https://huggingface.co
  token:
    description: Token for gated and private repositories.
    type: str
    default: ""
  ca_bundle:
    description: File with the certificates that the hub's is checked against; the system's own when empty.
    type: str
    default: ""
  verify:
    description: C(stamp) trusts size, time and inode of what was verified before; C(full) reads every byte again.
    type: str
    choices: [stamp, full]
    default: stamp
  workers:
    description: Splits that are downloaded at a time.
    type: int
    default: 4
  margin_bytes:
    description: Bytes that must stay free on the mount.
    type: int
    default: 2147483648
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
- name: Have the model
  llamarack.core.gguf_fetch:
    name: kimi-k2.5-ud-tq1_0
    entry:
      repository: unsloth/Kimi-K2.5-GGUF
      revision: 5f759b07a564a5cb9fcfa9ad456cf254e539ac77
      quant: UD-TQ1_0
      alias: kimi-k2.5
  vars:
    ansible_python_interpreter: /opt/llamarack/tools/bin/python
"""

RETURN = r"""
model:
  description: The model document; empty in check mode when the model is not there yet.
  returned: success
  type: dict
msg:
  description: What was done, or would be.
  returned: changed
  type: str
"""


class Hub:
    """The hub's side, through huggingface_hub; its errors come out as one sentence."""

    def __init__(self, params: Mapping[str, Any], cache: str) -> None:
        """Configure the library, which reads its settings when it is imported.

        :param cache: a directory for what it keeps by itself, so that nothing is left in anyone's home.
        """
        os.environ.update(
            HF_HOME=cache,
            HF_HUB_DISABLE_TELEMETRY="1",
            HF_HUB_DISABLE_PROGRESS_BARS="1",
            HF_HUB_DISABLE_IMPLICIT_TOKEN="1",
            HF_HUB_DOWNLOAD_TIMEOUT="60",
        )
        if params["ca_bundle"]:
            os.environ["SSL_CERT_FILE"] = params["ca_bundle"]
        try:
            from huggingface_hub import HfApi, constants, errors, hf_hub_download, hf_hub_url
            from huggingface_hub.file_download import http_get
            from huggingface_hub.hf_api import RepoFile
        except ImportError as error:
            raise fetch.FetchError(
                f"huggingface_hub cannot be used by this Python ({error}): run the role gguf_model from its beginning."
            ) from error
        self.errors = errors
        self.file_type = RepoFile
        self.download_file, self.transfer = hf_hub_download, http_get
        self.address = hf_hub_url
        self.largest_http_bytes = constants.MAX_HTTP_DOWNLOAD_SIZE
        self.endpoint = params["endpoint"].rstrip("/")
        self.token = params["token"] or False
        self.api = HfApi(endpoint=self.endpoint, token=self.token)

    def commit(self, repository: str, revision: str) -> str:
        """The commit that a revision names."""
        if hub.COMMIT.fullmatch(revision):
            return revision
        try:
            return str(self.api.model_info(repository, revision=revision).sha)
        except Exception as error:
            raise self.explained(error, repository, revision) from error

    def files(self, repository: str, commit: str) -> list[hub.RemoteFile]:
        """All files of a repository at a commit, with size and digest."""
        try:
            tree = list(self.api.list_repo_tree(repository, recursive=True, revision=commit))
        except Exception as error:
            raise self.explained(error, repository, commit) from error
        return [
            hub.RemoteFile(item.path, item.size, item.lfs.sha256 if item.lfs else "")
            for item in tree
            if isinstance(item, self.file_type)
        ]

    def download(self, repository: str, commit: str, file: hub.RemoteFile, part: Path) -> None:
        """Download one file, going on where an earlier run stopped.

        The library's own download begins a new file in each process, so that a killed one would begin again; its
        transfer with an offset does not. Only what is too large for that (more than 50 GB) is left to the former.
        """
        try:
            if file.size_bytes > self.largest_http_bytes:
                arrived = self.download_file(
                    repository, file.path, revision=commit, local_dir=part.parent, token=self.token,
                    endpoint=self.endpoint,
                )  # fmt: skip
                Path(arrived).replace(part)
                return
            begun = part.stat().st_size if part.exists() else 0
            if begun > file.size_bytes:
                part.unlink()
                begun = 0
            with part.open("ab") as stream:
                self.transfer(
                    self.address(repository, file.path, revision=commit, endpoint=self.endpoint),
                    stream,
                    resume_size=begun,
                    headers={"Authorization": f"Bearer {self.token}"} if self.token else {},
                    expected_size=file.size_bytes,
                )
                stream.flush()
                os.fsync(stream.fileno())
        except Exception as error:
            raise self.explained(error, repository, commit) from error

    def explained(self, error: Exception, repository: str, revision: str) -> fetch.FetchError:
        """What an error of the library means, in one sentence."""
        errors = self.errors
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, errors.GatedRepoError):
            why = f"{repository} is gated: accept its terms on the hub and set gguf_model_token"
        elif isinstance(error, errors.RepositoryNotFoundError):
            why = (
                f"{self.endpoint} has no repository {repository} that may be seen: correct repository in the "
                "catalogue, or set gguf_model_token if it is private"
            )
        elif isinstance(error, errors.RevisionNotFoundError):
            why = f"{repository} has no revision {revision}: correct revision in the catalogue"
        elif isinstance(error, errors.EntryNotFoundError) and status == 404:
            why = f"a file of {repository} is listed and not there at {revision[:12]}: choose another revision"
        elif status in (401, 403):
            why = f"the hub refuses access to {repository} (HTTP {status}): see gguf_model_token"
        elif isinstance(error, OSError) and error.errno in (28, 122):
            why = f"the disk is full while {repository} arrives: make room; what has arrived is kept"
        else:
            last = (str(error).strip() or type(error).__name__).splitlines()[0]
            why = (
                f"the hub at {self.endpoint} does not answer as it should while {repository} is fetched ({last}): see "
                "this host's network, its proxy and gguf_model_endpoint; the next run goes on where this one stopped"
            )
        return fetch.FetchError(f"{why[0].upper()}{why[1:]}.")


def previous_document(path: str, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """The document of an earlier run, if it is of the same model."""
    try:
        document = documents.read_document(path, "model")
    except documents.DocumentError:
        return None
    return document if all(document.get(key) == value for key, value in identity.items()) else None


def identity_of(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a catalogue entry this model and no other."""
    local = entry.get("source") == "local"
    return {
        "name": name,
        "source": "local" if local else "hub",
        "repository": "" if local else entry["repository"],
        "wanted_revision": "" if local else entry["revision"],
        "quant": str(entry.get("quant") or ""),
    }


def inspected(directory: Path, names: Sequence[str]) -> dict[str, Any]:
    """What the headers of a set say; the set is complete and consistent.

    :raises GgufError: when it is not.
    """
    headers = [gguf.read_header(str(directory / name)) for name in names]
    gguf.check_set(headers)
    return gguf.model_facts(headers)


def document_of(
    entry: Mapping[str, Any],
    identity: Mapping[str, Any],
    revision: str,
    directory: Path,
    splits: Sequence[fetch.Split],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """The model document's body."""
    return {
        **identity,
        "alias": str(entry.get("alias") or identity["name"]),
        "revision": revision,
        "path": str(directory),
        "first_split": str(directory / splits[0].name),
        "splits": [asdict(split) for split in splits],
        "bytes": sum(split.bytes for split in splits),
        "gguf": dict(facts),
    }


def candidates(state_dir: str) -> list[str]:
    """The directories that may hold models, best first."""
    store = documents.read_document(f"{state_dir}/model_store.json", "model_store")
    return [str(candidate["path"]) for candidate in store["candidates"]]


class Fetch:
    """One model of the hub on its way to the disk."""

    def __init__(
        self, module: AnsibleModule, identity: Mapping[str, Any], previous: dict[str, Any] | None, wrong: Sequence[str]
    ) -> None:
        """See what is wanted and what is there, from the hub's listing and the disk.

        :param wrong: names of files of an earlier run that are no longer what was verified.
        """
        params = module.params
        self.workers = params["workers"]
        self.repository, quant = identity["repository"], identity["quant"]
        cache = Path(params["state_dir"], "models", identity["name"], "hub")
        self.hub = Hub(params, str(cache))
        # A branch moves; what was chosen at the first fetch is kept until the catalogue says otherwise.
        self.revision = (
            previous["revision"] if previous else self.hub.commit(self.repository, params["entry"]["revision"])
        )
        where = f"{self.repository} at {self.revision[:12]}"
        self.files = hub.choose_splits(self.hub.files(self.repository, self.revision), quant, where)
        for file in self.files:
            if not file.sha256:
                raise fetch.FetchError(
                    f"{where} gives no SHA-256 for {file.path}: it cannot be verified, take another."
                )
        targets = [
            fetch.target_directory(root, self.repository, self.revision, quant)
            for root in candidates(params["state_dir"])
        ]
        begun = [target for target in targets if target.exists() or fetch.partial_directory(target).exists()]
        places = [Path(previous["path"])] if previous else begun[:1] or targets
        self.target = places[0] if places else Path()
        self.kept = self.still_whole(previous, wrong)
        self.missing_bytes = sum(file.size_bytes for file in self.files if file.name not in self.kept)
        rooms = [fetch.Room(str(place), fetch.free_bytes(place) + fetch.begun_bytes(place)) for place in places]
        room = fetch.choose_room(rooms, self.missing_bytes, params["margin_bytes"], f"{quant} of {where}")
        self.target = Path(room.path)

    @property
    def partial(self) -> Path:
        """Where files arrive."""
        return fetch.partial_directory(self.target)

    @property
    def whole(self) -> Path:
        """Where files lie that are verified."""
        return self.partial / "whole"

    def still_whole(self, previous: dict[str, Any] | None, wrong: Sequence[str]) -> dict[str, Path]:
        """The verified files that are there: left by a run that was killed, or in place already."""
        kept = {file.name: self.whole / file.name for file in self.files if (self.whole / file.name).exists()}
        known = {split["name"]: split["sha256"] for split in previous["splits"]} if previous else {}
        for file in self.files:
            path = self.target / file.name
            if file.name in kept or file.name in wrong or not path.is_file():
                continue
            # Without an earlier document (another entry of the same quant, a lost one) the file itself is asked.
            if file.sha256 == (known.get(file.name) or fetch.sha256_of(path)):
                kept[file.name] = path
        return kept

    def run(self) -> tuple[list[fetch.Split], dict[str, Any]]:
        """Download, verify, rename; return the splits and what their headers say."""
        self.whole.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(max_workers=max(1, self.workers)) as pool:
            # Every download is heard out, so that one that fails does not throw away what the others bring.
            futures = [pool.submit(self.bring, file) for file in self.files]
        for future in futures:
            future.result()
        names = [file.name for file in self.files]
        facts = inspected(self.whole, names)
        for name in names:
            (self.whole / name).chmod(0o644)
        fetch.sync_tree(self.whole)
        old = self.target.with_name(f".{self.target.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        if self.target.exists():
            self.target.replace(old)
        self.whole.replace(self.target)
        shutil.rmtree(old, ignore_errors=True)
        shutil.rmtree(self.partial, ignore_errors=True)
        return [fetch.stamp(self.target / file.name, file.sha256) for file in self.files], facts

    def bring(self, file: hub.RemoteFile) -> None:
        """Have one verified file in ``whole``.

        :raises FetchError: when it cannot be had, or arrives wrong twice.
        """
        final = self.whole / file.name
        if file.name in self.kept:
            if self.kept[file.name] != final:
                # The same bytes under a second name: nothing is copied, and the running server keeps its file.
                os.link(self.kept[file.name], final)
            return
        part = self.partial / f"{file.name}.part"
        digest = ""
        for _attempt in range(2):
            self.hub.download(self.repository, self.revision, file, part)
            digest = fetch.sha256_of(part)
            if digest == file.sha256:
                part.replace(final)
                return
            part.unlink()
        raise fetch.FetchError(
            f"{file.path} of {self.repository} arrived twice with the wrong SHA-256 ({digest[:16]}…, the hub says "
            f"{file.sha256[:16]}…): see the mirror or proxy between, and this host's memory and disk; nothing was "
            "taken into use."
        )


def from_hub(module: AnsibleModule, identity: Mapping[str, Any], previous: dict[str, Any] | None) -> dict[str, Any]:
    """Have the model from the hub."""
    directory = Path(previous["path"]) if previous else Path()
    full = module.params["verify"] == "full"
    wrong = fetch.damaged(directory, previous["splits"], full) if previous else []
    if previous and not wrong:
        splits = [fetch.stamp(directory / split["name"], split["sha256"]) for split in previous["splits"]]
        return document_of(module.params["entry"], identity, previous["revision"], directory, splits, previous["gguf"])
    wanted = Fetch(module, identity, previous, wrong)
    brought = f"{gib(wanted.missing_bytes)} in {len(wanted.files) - len(wanted.kept)} of {len(wanted.files)} files"
    if module.check_mode:
        module.exit_json(
            changed=True,
            model={},
            msg=f"would fetch {brought} from {wanted.repository} to {wanted.target}",
            diff={"before": "", "after": "".join(f"{wanted.target}/{file.name}\n" for file in wanted.files)},
        )
    splits, facts = wanted.run()
    return document_of(module.params["entry"], identity, wanted.revision, wanted.target, splits, facts)


def from_directory(
    module: AnsibleModule, identity: Mapping[str, Any], previous: dict[str, Any] | None
) -> dict[str, Any]:
    """Take the model from a directory as it lies there."""
    entry = module.params["entry"]
    root = Path(entry["path"])
    if not root.is_dir():
        raise fetch.FetchError(f"{root} is not a directory on this host: correct path in the catalogue, or mount it.")
    files = [hub.RemoteFile(str(path.relative_to(root)), path.stat().st_size) for path in sorted(root.rglob("*.gguf"))]
    quant = identity["quant"]
    chosen = hub.choose_splits(files, quant, str(root)) if quant else hub.whole_set(hub.models_in(files), str(root))
    if not chosen:
        raise fetch.FetchError(f"{root} holds no GGUF file: correct path in the catalogue.")
    directory = (root / chosen[0].path).parent
    names = [file.name for file in chosen]
    known: Mapping[str, Any] = {}
    if previous and previous["path"] == str(directory) and names == [split["name"] for split in previous["splits"]]:
        wrong = fetch.damaged(directory, previous["splits"], module.params["verify"] == "full")
        known = {split["name"]: split["sha256"] for split in previous["splits"] if split["name"] not in wrong}
        if previous and wrong and module.params["verify"] == "full":
            raise fetch.FetchError(
                f"{', '.join(wrong)} in {directory} changed since it was taken into use: restore it, or delete "
                f"{documents.model_path(identity['name'], module.params['state_dir'])} to take it as it is now."
            )
    facts = inspected(directory, names)
    splits = [fetch.stamp(directory / name, known.get(name) or fetch.sha256_of(directory / name)) for name in names]
    return document_of(entry, identity, "", directory, splits, facts)


def run(module: AnsibleModule) -> dict[str, Any]:
    """Do what the arguments ask for and return the result."""
    name, entry, state_dir = (module.params[key] for key in ("name", "entry", "state_dir"))
    hub.check_entry(name, entry)
    path = documents.model_path(name, state_dir)
    identity = identity_of(name, entry)
    previous = previous_document(path, identity)
    take = from_directory if identity["source"] == "local" else from_hub
    model = take(module, identity, previous)
    changed, diff = documents.write_document(path, "model", model, module.check_mode)
    message = f"{gib(model['bytes'])} in {len(model['splits'])} files, verified, in {model['path']}"
    return {"changed": changed, "model": model, "diff": diff, **({"msg": message} if changed else {})}


def main() -> None:
    """Arguments in, one call, result out."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "entry": {"type": "dict", "required": True},
            "endpoint": {"type": "str", "default": "https://huggingface.co"},
            "token": {"type": "str", "default": "", "no_log": True},
            "ca_bundle": {"type": "str", "default": ""},
            "verify": {"type": "str", "default": "stamp", "choices": ["stamp", "full"]},
            "workers": {"type": "int", "default": 4},
            "margin_bytes": {"type": "int", "default": 2 * 1024**3},
            "state_dir": {"type": "path", "default": documents.STATE_DIR},
        },
        supports_check_mode=True,
    )
    # Whatever root's own is: the service's user reads what is made here.
    os.umask(0o022)
    name = module.params["name"]
    try:
        module.exit_json(**run(module))
    except documents.DocumentMissing as missing:
        if not module.check_mode:
            module.fail_json(msg=f"{name}: {missing}")
        module.exit_json(changed=True, model={}, msg=f"it cannot be fetched before it is there: {missing}")
    except (hub.HubError, fetch.FetchError, gguf.GgufError, documents.DocumentError) as error:
        module.fail_json(msg=f"{name}: {error}")
    except OSError as error:
        module.fail_json(
            msg=f"{name}: the model cannot be put in place: {error}. See the disk's free space and rights."
        )


if __name__ == "__main__":
    main()
