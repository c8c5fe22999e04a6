"""Run again: nothing changes, nothing is asked for twice, and nothing needs the network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conftest import UNIT, Run
from testinfra.host import Host


def test_a_second_run_changes_nothing_and_asks_the_hub_nothing(
    host: Host, play: Callable[..., Run], hub: Callable[..., Any]
) -> None:
    started = host.run(f"systemctl show -p ExecMainStartTimestamp {UNIT}").stdout
    before = hub("_stats")
    run = play("site.yml", "--check", "--diff")
    assert run.status == 0, run.output
    assert run.recap("changed") == 0, run.output
    run = play("site.yml")
    assert run.status == 0, run.output
    assert run.recap("changed") == 0, run.output
    assert hub("_stats") == before
    assert host.run(f"systemctl show -p ExecMainStartTimestamp {UNIT}").stdout == started


def test_the_summary_names_endpoint_reasons_speed_and_a_call(play: Callable[..., Run]) -> None:
    output = play("playbooks/report.yml").output
    for expected in ("http://127.0.0.1:8080 serves gemma-3-270m, passed", "[measured]", "tokens/s", "curl http://127"):
        assert expected in output, output
