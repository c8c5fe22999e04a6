"""After the first run: it answers, with the build and the model that were asked for, and the key is safe."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
from conftest import KEY_FILE, UNIT, journal
from testinfra.host import Host


def document(host: Host, path: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(host.file(f"/var/lib/llamarack/{path}").content_string)
    return loaded


def test_the_service_runs_and_will_run_after_a_reboot(host: Host) -> None:
    service = host.service(UNIT)
    assert service.is_running, journal(host)
    assert service.is_enabled


def test_real_weights_know_where_the_eiffel_tower_stands(completion: Callable[[], str]) -> None:
    assert "Paris" in completion()


def test_a_chat_is_streamed_to_the_end(host: Host, ask: Callable[..., tuple[int, Any]]) -> None:
    status, answer = ask(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
    )
    assert status == 200
    assert answer["choices"][0]["message"]["content"]


@pytest.mark.parametrize("path", ["/v1/models", "/props", "/v1/chat/completions"])
def test_nobody_gets_in_without_the_key(ask: Callable[..., tuple[int, Any]], path: str) -> None:
    assert ask(path, {} if path.endswith("completions") else None, "")[0] == 401


def test_the_server_is_not_to_be_reached_from_other_machines(host: Host) -> None:
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("10.89.77.11", 8080), timeout=5)


def test_the_key_is_readable_by_the_service_alone_and_stands_nowhere_else(host: Host) -> None:
    key_file = host.file(KEY_FILE)
    assert key_file.mode == 0o400
    key = key_file.content_string.strip()
    assert len(key) >= 32
    for place in (
        "ps -ww -eo args",
        f"systemctl show {UNIT} --all",
        f"systemctl cat {UNIT}",
        "journalctl --no-pager",
        f"runuser -u llamarack -- cat /proc/$(systemctl show -p MainPID --value {UNIT})/environ",
        "grep -r . /var/lib/llamarack --include=*.json",
    ):
        seen = host.run(place)
        assert seen.stdout, place
        assert key not in seen.stdout, place


def test_the_server_runs_as_its_own_user_without_a_shell(host: Host) -> None:
    pid = host.run(f"systemctl show -p MainPID --value {UNIT}").stdout.strip()
    assert host.file(f"/proc/{pid}").user == "llamarack"
    assert host.user("llamarack").shell.endswith("nologin")


def test_the_build_is_the_pinned_one_and_says_so(host: Host, ask: Callable[..., tuple[int, Any]]) -> None:
    build = document(host, "build.json")
    assert build["build_number"] == 11311
    assert build["commit"].startswith("0c1e570")
    release = host.file("/opt/llamarack/llama.cpp/current").linked_to
    assert release.endswith(build["build_id"])
    assert ask("/props")[1]["build_info"].startswith("b11311-0c1e570")
    assert host.file(f"{release}/bin/llama-server").user == "root"


def test_every_split_is_there_with_the_digest_that_the_hub_gave(host: Host) -> None:
    model = document(host, "models/gemma-3-270m/model.json")
    assert len(model["splits"]) == 4
    for split in model["splits"]:
        path = f"{model['path']}/{split['name']}"
        assert host.file(path).sha256sum == split["sha256"], split
    assert model["gguf"]["architecture"] == "gemma3"


def test_the_plan_gives_a_reason_for_each_number(host: Host) -> None:
    plan = document(host, "instances/main/plan.json")
    decisions = {decision["key"]: decision for decision in plan["decisions"]}
    assert all(decision["reason"] for decision in plan["decisions"])
    cores = document(host, "host_profile.json")["cpu"]["usable_physical_cores"]
    assert decisions["threads"]["value"] == cores
    assert plan["memory"]["total_bytes"] <= plan["memory"]["available_bytes"]


def test_the_acceptance_record_has_measured_speeds(host: Host) -> None:
    record = document(host, "instances/main/acceptance.json")
    assert record["verdict"] == "passed"
    assert all(check["passed"] for check in record["checks"])
    assert record["decode_tokens_per_second"] > 0
