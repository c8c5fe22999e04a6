"""Bad input: one sentence, nothing half done, the old service still answering, the others going on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import BOTH, Run
from testinfra.host import Host

MAIN = {"model": "gemma-3-270m", "port": 8080, "policy": {"fit": "ram", "context": 4096}}
ENTRY = {"repository": "llamarack/gemma-3-270m-GGUF", "revision": "main", "quant": "Q4_K_M", "alias": "gemma"}


def instances(**others: Any) -> tuple[str, str]:
    """The owner's instances, with a change."""
    return "-e", json.dumps({"llama_server_instances": {"main": MAIN, **others}})


def catalogue(**change: Any) -> tuple[str, str]:
    """The owner's catalogue with a second entry, and the instance that wants it."""
    second = {"model": "second", "port": 8081, "policy": {"fit": "ram", "context": 4096}}
    return "-e", json.dumps(
        {
            "llamarack_own_models": {"gemma-3-270m": ENTRY, "second": {**ENTRY, **change}},
            "llama_server_instances": {"main": MAIN, "second": second},
        }
    )


@pytest.fixture(autouse=True)
def the_old_service_answers_after_all(completion: Callable[[], str]) -> Iterator[None]:
    yield
    assert "Paris" in completion()


@pytest.mark.parametrize(
    ("playbook", "arguments", "words"),
    [
        (
            "playbooks/preflight.yml",
            ("-e", "llama_server_instnaces={}"),
            ["llama_server_instnaces is not a variable", "did you mean llama_server_instances?"],
        ),
        ("site.yml", instances(main={**MAIN, "model": "gemma-3-270n"}), ["gemma-3-270n", "gemma-3-270m"]),
        ("site.yml", instances(main={**MAIN, "port": "eighty"}), ["eighty", "port"]),
        ("site.yml", instances(main={**MAIN, "host": "0.0.0.0", "api_key_required": False}), ["0.0.0.0", "key"]),
        ("playbooks/models.yml", catalogue(quant="Q4_K_N"), ["Q4_K_N", "Q4_K_M"]),
        ("playbooks/models.yml", catalogue(repository="llamarack/no-such-GGUF"), ["llamarack/no-such-GGUF"]),
        ("playbooks/serve.yml", instances(main={**MAIN, "policy": {"fit": "ram", "kontext": 4096}}), ["kontext"]),
    ],
    ids=[
        "misspelt variable",
        "unknown model",
        "wrong type",
        "public without a key",
        "unknown quant",
        "unknown repository",
        "misspelt policy",
    ],
)
def test_what_the_owner_got_wrong_is_named(
    play: Callable[..., Run], playbook: str, arguments: tuple[str, ...], words: list[str]
) -> None:
    run = play(playbook, *arguments)
    assert run.recap("failed") == 1, run.output
    assert run.recap("changed") == 0, run.output
    for word in words:
        assert word in run.output, run.output


def test_a_port_in_use_names_its_owner(host: Host, play: Callable[..., Run]) -> None:
    server = "python3 -m http.server --bind 127.0.0.1 8099"
    host.run(f"systemd-run --unit squatter {server}")
    try:
        run = play("playbooks/serve.yml", *instances(second={**MAIN, "port": 8099}))
        assert run.recap("failed") == 1, run.output
        assert "8099" in run.output
        assert "python3" in run.output
    finally:
        host.run("systemctl stop squatter")


def test_a_server_that_ends_at_once_is_told_with_its_reason_and_the_next_run_takes_it_away(
    host: Host, play: Callable[..., Run]
) -> None:
    # An address of no machine: nothing listens there, and nothing can.
    run = play("playbooks/serve.yml", *instances(second={**MAIN, "port": 8081, "host": "192.0.2.1"}))
    assert run.recap("failed") == 1, run.output
    assert "Instance second ended" in run.output, run.output
    assert "is not one of this host's" in " ".join(run.output.split()), run.output

    assert play("playbooks/serve.yml").status == 0
    assert host.run("systemctl is-active llamarack@second").stdout.strip() != "active"
    assert not host.file("/etc/systemd/system/llamarack@second.service.d").exists
    assert not host.file("/var/lib/llamarack/instances/second").exists


def test_a_split_that_arrives_wrong_twice_is_refused(
    host: Host, play: Callable[..., Run], hub: Callable[..., Any]
) -> None:
    # A second host name's worth of the same model, in a root of its own: the first stays where it is.
    hub("_faults", {"corrupt": True})
    try:
        run = play("playbooks/models.yml", *catalogue(), "-e", "model_store_path=/srv/second")
    finally:
        hub("_faults", {})
    assert run.recap("failed") == 1, run.output
    assert "SHA-256" in run.output, run.output
    assert host.run("find /srv/second -name '*.gguf' -not -path '*/.*'").stdout == ""


def test_an_unreachable_host_is_named_and_the_others_go_on(play: Callable[..., Run], tmp_path: Path) -> None:
    gone = tmp_path / "gone.yml"
    gone.write_text("all: {hosts: {gone: {ansible_host: 10.89.77.99, ansible_ssh_timeout: 3}}}\n")
    run = play("playbooks/preflight.yml", f"--inventory={gone}", "-e", "ansible_ssh_timeout=3", BOTH)
    assert "It cannot be reached" in run.output, run.output
    assert run.recap("failed") == 0, run.output
    assert run.recap("unreachable") == 0, run.output
    assert run.recap("failed", "gone") == 1, run.output
