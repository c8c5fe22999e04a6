"""Run again: nothing changes, nothing is asked for twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conftest import BOTH, UNIT, Run
from testinfra.host import Host


def test_a_look_at_a_deployed_host_finds_nothing_to_change(host: Host, play: Callable[..., Run]) -> None:
    started = host.run(f"systemctl show -p ExecMainStartTimestamp {UNIT}").stdout
    run = play("site.yml", "--check", "--diff")
    assert run.status == 0, run.output
    assert run.recap("changed") == 0, run.output
    assert host.run(f"systemctl show -p ExecMainStartTimestamp {UNIT}").stdout == started


def test_a_model_that_is_there_is_not_asked_for_again(play: Callable[..., Run], hub: Callable[..., Any]) -> None:
    before = hub("_stats")
    run = play("playbooks/models.yml")
    assert run.status == 0, run.output
    assert run.recap("changed") == 0, run.output
    assert hub("_stats") == before


def test_the_summary_names_endpoint_reasons_speed_and_a_call(play: Callable[..., Run]) -> None:
    output = play("playbooks/report.yml", BOTH).output
    for expected in (
        "serves gemma-3-270m, passed",
        "serves tiny-kimi-k2, passed",
        "[measured]",
        "tokens/s",
        "curl http",
    ):
        assert expected in output, output
