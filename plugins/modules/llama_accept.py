#!/usr/bin/python
"""Ask a running server what a client would ask, and write down what it answered and how fast."""

from __future__ import annotations

import hashlib
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llamarack.core.plugins.module_utils import acceptance, documents
from ansible_collections.llamarack.core.plugins.module_utils.acceptance import Answer

DOCUMENTATION = r"""
module: llama_accept
short_description: Prove that an instance works as it was planned
description:
  - Sees that the server names the build and the model that were deployed, answers a chat and a streamed chat with the
    key, refuses one without it, and takes the tokens per second from the server's own timings.
  - Writes the acceptance record. Speeds differ from run to run; the record is rewritten when anything else does.
  - Fails when a check fails, with what came instead.
options:
  instance:
    description: Name of the instance; its plan says what is expected.
    type: str
    required: true
  key_file:
    description: File with the API key; empty when the instance asks for none.
    type: str
    default: ""
  timeout_seconds:
    description: How long one answer may take.
    type: int
    default: 900
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
- name: Prove that it works
  llamarack.core.llama_accept:
    instance: main
    key_file: /etc/llamarack/main/api.key
"""

RETURN = r"""
acceptance:
  description: The record; empty in check mode when there is no plan yet.
  returned: success
  type: dict
"""

# What a run may find otherwise without anything having changed.
VOLATILE = frozenset({"prefill_tokens_per_second", "decode_tokens_per_second", "detail"})


class Client:
    """A client of one server."""

    def __init__(self, endpoint: str, key: str, timeout_seconds: int) -> None:
        """Remember where and how to ask. No proxy stands between a server and itself."""
        self.endpoint = endpoint
        self.key = key
        self.timeout_seconds = timeout_seconds
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(self, path: str, body: dict[str, Any] | None = None, with_key: bool = True) -> Answer:
        """One request; whatever comes back is an answer."""
        headers = {"Content-Type": "application/json"}
        if with_key and self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.endpoint}{path}", data, headers)
        try:
            with self.opener.open(request, timeout=self.timeout_seconds) as answer:
                return Answer(answer.status, answer.read().decode("utf-8", "replace"))
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read().decode("utf-8", "replace"))
        except (OSError, ValueError) as error:
            return Answer(0, f"no answer from {self.endpoint}: {error}")


def examine(client: Client, plan: dict[str, Any], build: dict[str, Any], digest: str) -> dict[str, Any]:
    """Ask everything and return the record."""
    chat = {"model": plan["alias"], "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16}
    measured = {
        "prompt": acceptance.PROMPT,
        "n_predict": acceptance.DECODE_TOKENS,
        "ignore_eos": True,
        "cache_prompt": False,
    }
    props = client.ask("/props")
    speed, prefill, decode = acceptance.speeds(client.ask("/completion", measured))
    checks = [
        acceptance.check_build(props, build),
        acceptance.check_model(props, plan),
        acceptance.check_alias(client.ask("/v1/models"), plan["alias"]),
        acceptance.check_chat(client.ask("/v1/chat/completions", chat)),
        acceptance.check_stream(client.ask("/v1/chat/completions", {**chat, "stream": True})),
        acceptance.check_locked(client.ask("/v1/chat/completions", chat, with_key=False), bool(client.key)),
        speed,
    ]
    return acceptance.record(plan, digest, client.endpoint, props, checks, prefill, decode)


def run(module: AnsibleModule) -> dict[str, Any]:
    """Do what the arguments ask for and return the result."""
    instance, state_dir, key_file = (module.params[key] for key in ("instance", "state_dir", "key_file"))
    plan_path = documents.plan_path(instance, state_dir)
    plan = documents.read_document(plan_path, "plan")
    build = documents.read_document(f"{state_dir}/build.json", "build")
    digest = hashlib.sha256(Path(plan_path).read_bytes()).hexdigest()
    decided = {item["key"]: item["value"] for item in plan["decisions"]}
    key = Path(key_file).read_text(encoding="utf-8").split()[0] if key_file else ""
    client = Client(documents.endpoint(decided["host"], decided["port"]), key, module.params["timeout_seconds"])
    record = examine(client, plan, build, digest)
    path = documents.acceptance_path(instance, state_dir)
    changed, diff = documents.write_document(path, "acceptance", record, module.check_mode, VOLATILE)
    failed = [f"{check['name']} ({check['detail']})" for check in record["checks"] if not check["passed"]]
    if failed:
        module.fail_json(
            msg=f"Instance {instance} is not accepted: {'; '.join(failed)}. See its log, then run site.yml again.",
            acceptance=record,
            changed=changed,
        )
    return {"changed": changed, "acceptance": record, "diff": diff}


def main() -> None:
    """Arguments in, one call, result out."""
    module = AnsibleModule(
        argument_spec={
            "instance": {"type": "str", "required": True},
            "key_file": {"type": "str", "default": "", "no_log": False},
            "timeout_seconds": {"type": "int", "default": 900},
            "state_dir": {"type": "path", "default": documents.STATE_DIR},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**run(module))
    except documents.DocumentMissing as missing:
        if not module.check_mode:
            module.fail_json(msg=str(missing))
        module.exit_json(changed=True, acceptance={}, msg=f"it cannot be accepted before it is there: {missing}")
    except documents.DocumentError as error:
        module.fail_json(msg=str(error))
    except (OSError, IndexError) as error:
        module.fail_json(msg=f"{module.params['key_file']} cannot be used as the API key of the instance: {error}.")


if __name__ == "__main__":
    main()
