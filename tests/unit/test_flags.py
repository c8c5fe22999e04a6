"""Decisions become the arguments that the installed binary knows."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llamarack.core.plugins.module_utils import flags
from ansible_collections.llamarack.core.plugins.module_utils.plan import make_plan

TESTS = Path(__file__).resolve().parents[1]
TODAY = flags.parse_help((TESTS / "recorded/help/b11311.txt").read_text())
LEGACY = flags.parse_help((TESTS / "recorded/help/legacy.txt").read_text())


def decided(**values: Any) -> list[dict[str, Any]]:
    return [{"key": key, "value": value} for key, value in values.items()]


def arguments(known: dict[str, str], **values: Any) -> list[str]:
    return list(flags.render(decided(**values), known).arguments)


def facts(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((TESTS / f"golden/facts/{name}.json").read_text())
    return content


def test_the_help_text_names_options_and_whether_they_take_a_value() -> None:
    assert len(TODAY) > 350
    assert TODAY["--ctx-size"] == TODAY["-c"] == "N"
    assert TODAY["--flash-attn"] == "[on|off|auto]"
    assert TODAY["--load-mode"] == "MODE"
    assert TODAY["--fit-target"].startswith("MiB0")
    assert TODAY["--cache-type-k-draft"] == "TYPE"
    assert TODAY["--metrics"] == TODAY["--no-slots"] == TODAY["--no-kv-unified"] == TODAY["--help"] == ""
    assert "--no-mmap" not in TODAY
    assert LEGACY["--flash-attn"] == LEGACY["--no-mmap"] == ""
    assert flags.parse_help("error: no such file\n") == {}


@pytest.mark.parametrize(
    ("mode", "today", "legacy"),
    [
        ("none", ["--load-mode", "none"], ["--no-mmap"]),
        ("mmap", ["--load-mode", "mmap"], []),
        ("mlock", ["--load-mode", "mlock"], ["--no-mmap", "--mlock"]),
        ("mmap+mlock", ["--load-mode", "mmap+mlock"], ["--mlock"]),
    ],
)
def test_load_modes_are_spelt_as_the_build_knows_them(mode: str, today: list[str], legacy: list[str]) -> None:
    assert arguments(TODAY, load_mode=mode) == today
    assert arguments(LEGACY, load_mode=mode) == legacy


def test_flash_attention_was_a_switch_once() -> None:
    assert arguments(TODAY, flash_attention="on") == ["--flash-attn", "on"]
    assert arguments(LEGACY, flash_attention="on") == ["--flash-attn"]
    rendered = flags.render(decided(flash_attention="auto"), LEGACY)
    assert rendered.arguments == ()
    assert rendered.omitted[0].key == "flash_attention"


def test_what_a_build_cannot_be_told_is_left_out_and_said() -> None:
    rendered = flags.render(decided(fit=False, prompt_cache_mib=512, ui=False, slots_endpoint=False), LEGACY)
    assert rendered.arguments == ("--no-webui", "--no-slots")
    assert [item.key for item in rendered.omitted] == ["fit", "prompt_cache_mib"]
    assert all(item.reason for item in rendered.omitted)


def test_switches_say_nothing_when_the_default_says_it() -> None:
    assert arguments(TODAY, repack=True, metrics=False, ui=True) == ["--ui"]
    assert arguments(TODAY, repack=False, metrics=True, slots_endpoint=True) == ["--no-repack", "--metrics", "--slots"]


def test_a_required_option_that_is_unknown_is_an_error_naming_it_and_the_build() -> None:
    known = {key: value for key, value in TODAY.items() if key != "--api-key-file"}
    with pytest.raises(flags.FlagError, match=r"b11311-cpu knows no --api-key-file, which the plan's api_key_file"):
        flags.render([], known, {"api_key_file": "/etc/key"}, "b11311-cpu")
    with pytest.raises(flags.FlagError, match="no --load-mode or --direct-io"):
        arguments({}, load_mode="dio")


def test_a_decision_without_a_spelling_is_an_error() -> None:
    with pytest.raises(flags.FlagError, match="moonlight"):
        arguments(TODAY, moonlight="on")
    with pytest.raises(flags.FlagError, match="load_mode"):
        arguments(TODAY, load_mode="sideways")


def test_names_and_values_are_items_of_their_own_and_names_are_long() -> None:
    instance = {"name": "main", "model": "kimi-k2", "port": 8080, "policy": {"context": 131072}}
    plan = make_plan(facts("epyc_384"), facts("build"), facts("kimi_k2"), instance)
    rendered = flags.render(plan["decisions"], TODAY, {"api_key_file": "/etc/llamarack/main/api.key"})
    assert not rendered.omitted
    names = [item for item in rendered.arguments if item.startswith("-")]
    assert all(name.startswith("--") and "=" not in name and name in TODAY for name in names)
    assert len(names) == len(set(names))
    golden = TESTS / "golden/plans/epyc_384_kimi_k2.argv.txt"
    text = "\n".join(rendered.arguments) + "\n"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        golden.write_text(text)
    assert golden.read_text() == text
