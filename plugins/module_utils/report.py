"""What a run came to, in lines that a person reads: endpoint, plan with its reasons, speed, and a call that works."""

from __future__ import annotations

import json
from typing import Any

from ansible_collections.llamarack.core.plugins.module_utils.memory import gib


def host_line(profile: dict[str, Any]) -> str:
    """The machine in one line."""
    cpu = profile["cpu"]
    gpus = ", ".join(gpu["name"] for gpu in profile["gpus"]) or "no GPU"
    return (
        f"{cpu['model']}, {cpu['usable_physical_cores']} of {cpu['physical_cores']} cores usable, "
        f"{gib(profile['memory']['usable_bytes'])} RAM, {gpus}"
    )


def decision_lines(plan: dict[str, Any]) -> list[str]:
    """Each decision of a plan with its reason, in columns."""
    decisions = plan["decisions"]
    keys = max(len(str(item["key"])) for item in decisions)
    values = min(32, max(len(value_text(item["value"])) for item in decisions))
    return [
        f"  {item['key']:<{keys}}  {value_text(item['value']):<{values}}  {item['reason']} [{item['source']}]"
        for item in decisions
    ]


def value_text(value: Any) -> str:
    """A value as an owner would write it in YAML."""
    return value if isinstance(value, str) else json.dumps(value)


def curl_line(endpoint: str, alias: str, read_key: str) -> str:
    """A call that works as it stands, on the host.

    :param read_key: the command that prints the key ("" without one): the key itself is never shown.
    """
    body = json.dumps({"model": alias, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 32})
    authorization = f' -H "Authorization: Bearer $({read_key})"' if read_key else ""
    return f"curl {endpoint}/v1/chat/completions{authorization} -H 'Content-Type: application/json' -d '{body}'"


def instance_lines(plan: dict[str, Any], record: dict[str, Any], read_key: str) -> list[str]:
    """One instance: what runs, why so, how fast, and how to ask it."""
    memory = plan["memory"]
    return [
        f"{plan['instance']}: {record['endpoint']} serves {plan['alias']}, {record['verdict']}",
        f"  build {record['build_info']}, model {gib(plan['model_bytes'])}, "
        f"memory planned {gib(memory['total_bytes'])} of {gib(memory['available_bytes'])}",
        f"  measured: prefill {record['prefill_tokens_per_second']:.1f} tokens/s, "
        f"decode {record['decode_tokens_per_second']:.1f} tokens/s",
        *decision_lines(plan),
        f"  {curl_line(record['endpoint'], plan['alias'], read_key)}",
    ]
