"""What counts as a server that works: answers in, judgements out. Pure.

A check is passed or failed with a detail that a person can act on; nothing here talks to a server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Long enough that a batch is computed, short enough for a disk that feeds a trillion parameters.
PROMPT = "The quick brown fox jumps over the lazy dog. " * 12
PROMPT_TOKENS_LEAST = 32
DECODE_TOKENS = 32


@dataclass(frozen=True)
class Answer:
    """What came back for a request: the HTTP status (0: nothing came) and the body."""

    status: int
    body: str

    def json(self) -> Any:
        """The body as JSON; None when it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


@dataclass(frozen=True)
class Check:
    """One thing that was asked, and what came of it."""

    name: str
    passed: bool
    detail: str


def unexpected(answer: Answer) -> str:
    """An answer that was not what it should be, for a detail."""
    return f"HTTP {answer.status}: {' '.join(answer.body.split())[:200]}" if answer.status else answer.body


def check_build(props: Answer, build: Mapping[str, Any]) -> Check:
    """``/props`` names the build that was deployed: ``b11311-0c1e570``."""
    document = props.json()
    told = str(document.get("build_info", "")) if props.status == 200 and isinstance(document, dict) else ""
    number, _, commit = told.partition("-")
    same = (
        number == f"b{build['build_number']}" and bool(commit) and str(build["commit"]).startswith(commit.split("-")[0])
    )
    if same:
        return Check("build", True, f"it is {told}")
    wanted = f"b{build['build_number']}-{str(build['commit'])[:7]}"
    return Check(
        "build", False, f"it says {told or unexpected(props)}, but {wanted} is installed: restart the instance"
    )


def check_model(props: Answer, plan: Mapping[str, Any]) -> Check:
    """``/props`` names the model file that was planned."""
    document = props.json()
    told = str(document.get("model_path", "")) if props.status == 200 and isinstance(document, dict) else ""
    if told == plan["model_path"]:
        return Check("model", True, f"it serves {told}")
    return Check("model", False, f"it serves {told or unexpected(props)}, but {plan['model_path']} is planned")


def check_alias(models: Answer, alias: str) -> Check:
    """``/v1/models`` lists the name that clients ask for."""
    document = models.json()
    listed = [str(item.get("id")) for item in (document or {}).get("data", [])] if models.status == 200 else []
    detail = f"it lists {', '.join(listed)}" if listed else unexpected(models)
    return Check("alias", alias in listed, detail)


def check_chat(answer: Answer) -> Check:
    """A chat completion has tokens in it (a model may think before it speaks)."""
    document = answer.json()
    try:
        tokens = int(document["usage"]["completion_tokens"]) if answer.status == 200 else 0
        finished = document["choices"][0]["finish_reason"] if answer.status == 200 else None
    except (KeyError, IndexError, TypeError, ValueError):
        tokens, finished = 0, None
    if tokens > 0 and finished:
        return Check("chat", True, f"{tokens} tokens, finished: {finished}")
    return Check("chat", False, unexpected(answer))


def check_stream(answer: Answer) -> Check:
    """A streamed chat completion arrives in pieces and says that it is done."""
    pieces = [line[6:] for line in answer.body.splitlines() if line.startswith("data: ")]
    if answer.status == 200 and len(pieces) >= 2 and pieces[-1].strip() == "[DONE]":
        return Check("stream", True, f"{len(pieces) - 1} pieces, then the end")
    return Check("stream", False, unexpected(answer))


def check_locked(answer: Answer, key_required: bool) -> Check:
    """Without a key nobody gets in, unless the owner wants no key."""
    if not key_required:
        return Check("lock", answer.status == 200, f"no key is asked for, as the owner wants: HTTP {answer.status}")
    if answer.status == 401:
        return Check("lock", True, "HTTP 401 without the key")
    return Check("lock", False, f"without the key it should be HTTP 401, but it is {unexpected(answer)}")


def speeds(answer: Answer) -> tuple[Check, float, float]:
    """The server's own timings of a prompt and a generation: the check, and tokens per second of prefill and decode."""
    document = answer.json()
    timings = document.get("timings", {}) if answer.status == 200 and isinstance(document, dict) else {}
    try:
        prefill, decode = float(timings["prompt_per_second"]), float(timings["predicted_per_second"])
        read, made = int(timings["prompt_n"]), int(timings["predicted_n"])
    except (KeyError, TypeError, ValueError):
        return Check("speed", False, unexpected(answer)), 0.0, 0.0
    enough = read >= PROMPT_TOKENS_LEAST and made == DECODE_TOKENS and prefill > 0 and decode > 0
    return Check("speed", enough, f"{read} tokens read, {made} made"), prefill, decode


def record(
    plan: Mapping[str, Any],
    plan_digest: str,
    endpoint: str,
    props: Answer,
    checks: Sequence[Check],
    prefill_tokens_per_second: float,
    decode_tokens_per_second: float,
) -> dict[str, Any]:
    """The acceptance document's body."""
    told = props.json()
    return {
        "instance": plan["instance"],
        "verdict": "passed" if all(check.passed for check in checks) else "failed",
        "endpoint": endpoint,
        "build_info": told.get("build_info", "") if isinstance(told, dict) else "",
        "model": plan["model"],
        "plan_digest": plan_digest,
        "prefill_tokens_per_second": round(prefill_tokens_per_second, 2),
        "decode_tokens_per_second": round(decode_tokens_per_second, 2),
        "checks": [{"name": check.name, "passed": check.passed, "detail": check.detail} for check in checks],
    }
