"""From decisions to the arguments of ``llama-server``, by asking the binary which options it knows.

The only place that spells an option of llama.cpp. Options come and go between its releases (``--no-mmap`` became
``--load-mode none``), and an unknown one is fatal to it: so each decision has its spellings in order of preference, and
the first that the installed binary's ``--help`` names is used. Names and values are items of their own:
``--option=value`` does not exist there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# An option at the start of a line of the help text, or after another one: "-c,    --ctx-size N     size of …".
SPELLING = re.compile(r"(--?[A-Za-z][\w-]*),?([ \t]*)")

# One way to say a decision: options with their values. No option at all: the default says it already.
Way = Sequence[tuple[str, ...]]


class FlagError(Exception):
    """The binary lacks an option without which the plan cannot be run; the message says which."""


@dataclass(frozen=True)
class Omitted:
    """A decision that the binary cannot be told, and what that means."""

    key: str
    value: Any
    reason: str


@dataclass(frozen=True)
class Rendered:
    """Arguments (without the program), and what was left out."""

    arguments: tuple[str, ...]
    omitted: tuple[Omitted, ...]


def parse_help(text: str) -> dict[str, str]:
    """What ``llama-server --help`` names: option → the hint of its value, "" for one that takes none."""
    known: dict[str, str] = {}
    for line in text.splitlines():
        if not line.startswith("-"):
            continue
        spellings = []
        position = 0
        gap = ""
        match = SPELLING.match(line)
        while match:
            spellings.append(match.group(1))
            gap = match.group(2)
            position = match.end()
            match = SPELLING.match(line, position)
        # One space and a word: a value. Two spaces, or the end of the line: the description comes next.
        hint = re.split(r"\s{2,}", line[position:], maxsplit=1)[0] if len(gap) == 1 else ""
        known.update(dict.fromkeys(spellings, hint))
    return known


def render(
    decisions: Sequence[Mapping[str, Any]],
    known: Mapping[str, str],
    extra: Mapping[str, Any] | None = None,
    build_id: str = "this build",
) -> Rendered:
    """The arguments for a plan's decisions and for what is no decision (``extra``: api_key_file).

    :raises FlagError: when a required option is unknown to the binary, or a decision has no spelling here.
    """
    arguments: list[str] = []
    omitted: list[Omitted] = []
    for key, value in [*((str(item["key"]), item["value"]) for item in decisions), *(extra or {}).items()]:
        ways = spellings(key, value)
        way = next((way for way in ways if all(is_known(option, known) for option in way)), None)
        if way is not None:
            arguments += [item for option in way for item in option]
        elif key in OPTIONAL:
            omitted.append(Omitted(key, value, OPTIONAL[key]))
        else:
            names = " or ".join(" ".join(option[0] for option in way) for way in ways)
            raise FlagError(
                f"llama-server of {build_id} knows no {names}, which the plan's {key} ({text(value)}) needs: "
                "build a newer llama.cpp, or pin one whose --help names it."
            )
    return Rendered(tuple(arguments), tuple(omitted))


def is_known(option: tuple[str, ...], known: Mapping[str, str]) -> bool:
    """Whether the binary knows the option in this form: with a value, or without."""
    return option[0] in known and bool(known[option[0]]) == (len(option) > 1)


def text(value: Any) -> str:
    """A value as an argument."""
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


# Decisions that a binary may be unable to hear, and what it means.
OPTIONAL: dict[str, str] = {
    "threads_batch": "this build uses the threads of generation for prompts, too",
    "fit": "this build never changes a plan by itself",
    "prompt_cache_mib": "this build keeps no cache of earlier prompts",
    "repack": "this build cannot be told whether to reorder weights in RAM",
    "ui": "this build cannot be told whether to serve a web page",
    "metrics": "this build has no counters for monitoring",
    "slots_endpoint": "this build cannot be told whether to show its slots",
    "flash_attention": "this build decides about flash attention by itself",
}

# Decision → the option that takes its value.
VALUED: dict[str, tuple[str, ...]] = {
    "model": ("--model",),
    "alias": ("--alias",),
    "host": ("--host",),
    "port": ("--port",),
    "threads": ("--threads",),
    "threads_batch": ("--threads-batch",),
    "context": ("--ctx-size",),
    "slots": ("--parallel",),
    "cache_type_k": ("--cache-type-k",),
    "cache_type_v": ("--cache-type-v",),
    "fit": ("--fit",),
    "prompt_cache_mib": ("--cache-ram",),
    "batch": ("--batch-size",),
    "ubatch": ("--ubatch-size",),
    "gpu_layers": ("--gpu-layers", "--n-gpu-layers"),
    "api_key_file": ("--api-key-file",),
}

# Decision → ways to say each of its values, the preferred first.
LOAD_MODE: dict[str, tuple[Way, ...]] = {
    "auto": ((),),
    "mmap": ((),),
    "none": ((("--no-mmap",),),),
    "mlock": ((("--no-mmap",), ("--mlock",)),),
    "mmap+mlock": ((("--mlock",),),),
    "dio": ((("--direct-io",),),),
}
FLASH_ATTENTION: dict[str, tuple[Way, ...]] = {
    "on": ((("--flash-attn",),),),
    "off": (),
    "auto": (),
}
SWITCHES: dict[tuple[str, bool], tuple[Way, ...]] = {
    ("repack", True): ((),),
    ("repack", False): ((("--no-repack",),),),
    ("ui", True): ((("--ui",),), (("--webui",),)),
    ("ui", False): ((("--no-ui",),), (("--no-webui",),)),
    ("metrics", True): ((("--metrics",),),),
    ("metrics", False): ((),),
    ("slots_endpoint", True): ((("--slots",),),),
    ("slots_endpoint", False): ((("--no-slots",),),),
}


def spellings(key: str, value: Any) -> tuple[Way, ...]:
    """The ways to say a decision, the preferred first.

    :raises FlagError: when there is none for the key or the value.
    """
    if key in VALUED:
        return tuple(((name, text(value)),) for name in VALUED[key])
    if key == "load_mode" and value in LOAD_MODE:
        return ((("--load-mode", value),), *LOAD_MODE[value])
    if key == "flash_attention" and value in FLASH_ATTENTION:
        return ((("--flash-attn", value),), *FLASH_ATTENTION[value])
    if isinstance(value, bool) and (key, value) in SWITCHES:
        return SWITCHES[key, value]
    raise FlagError(f"the plan's {key} ({text(value)}) has no spelling: run site.yml to write the plan anew.")
