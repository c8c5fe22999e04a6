"""What is killed half way: the old service answers, nothing half is taken for whole, and the next run converges."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any

from conftest import REPOSITORY, UNIT, Run, journal
from testinfra.host import Host

NEXT_BUILD = ("-e", "llama_cpp_build_number=11312")
CURRENT = "/opt/llamarack/llama.cpp/current"


def wait_until(what: str, happened: Callable[[], bool], deadline_seconds: float = 600) -> None:
    """Wait for a condition; say which one never came."""
    end = time.monotonic() + deadline_seconds
    while not happened():
        assert time.monotonic() < end, f"waited {deadline_seconds} s for {what}"
        time.sleep(0.2)


def test_a_killed_server_comes_back_by_itself(host: Host, completion: Callable[[], str]) -> None:
    pid = host.run(f"systemctl show -p MainPID --value {UNIT}").stdout.strip()
    assert host.run(f"kill -9 {pid}").rc == 0

    def answers_again() -> bool:
        fresh = host.run(f"systemctl show -p MainPID --value {UNIT}").stdout.strip()
        probe = "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/health', timeout=2)"
        return fresh not in (pid, "0") and bool(host.run("python3 -c %s", probe).rc == 0)

    wait_until(f"the server to come back\n{journal(host)}", answers_again, 90)
    assert "Paris" in completion()


def test_a_killed_build_leaves_the_current_one_and_the_next_run_finishes_it(
    host: Host,
    play: Callable[..., Run],
    start_play: Callable[..., subprocess.Popen[str]],
    completion: Callable[[], str],
) -> None:
    before = host.file(CURRENT).linked_to
    build = start_play("playbooks/build.yml", *NEXT_BUILD)

    def is_compiling() -> bool:
        assert build.poll() is None, build.communicate()[0]
        objects = host.run("find /opt/llamarack/llama.cpp/build -name '*.o' | wc -l").stdout
        return int(objects or 0) >= 20

    wait_until("twenty objects", is_compiling)
    host.run("pkill -9 -x cmake; pkill -9 -x ninja; pkill -9 -f cc1plus")
    output = build.communicate(timeout=120)[0]
    assert build.returncode != 0, output

    assert host.file(CURRENT).linked_to == before
    assert "Paris" in completion()

    run = play("site.yml", *NEXT_BUILD)
    assert run.status == 0, run.output
    assert host.file(CURRENT).linked_to != before
    assert "11312" in host.run(f"{CURRENT}/bin/llama-server --version 2>&1").stdout
    assert "Paris" in completion()


def test_a_killed_fetch_leaves_no_file_under_a_final_name_and_the_next_run_resumes_it(
    host: Host,
    play: Callable[..., Run],
    start_play: Callable[..., subprocess.Popen[str]],
    hub: Callable[..., Any],
    completion: Callable[[], str],
) -> None:
    model = host.run(f"find / -xdev -path '*/{REPOSITORY}/*/Q4_K_M' -type d").stdout.strip()
    total = int(host.run(f"cat {model}/*.gguf | wc -c").stdout)
    assert host.run(f"rm -r {model}").rc == 0
    hub("_faults", {"bytes_per_second": 20_000_000})
    before = hub("_stats")["bytes"]
    fetch = start_play("playbooks/models.yml")

    def is_arriving() -> bool:
        assert fetch.poll() is None, fetch.communicate()[0]
        partial = host.run(f"du -sb {model.rsplit('/', 1)[0]}/.Q4_K_M.partial 2>/dev/null | cut -f1").stdout
        return int(partial or 0) > total // 3

    wait_until("a third of the model", is_arriving, 120)
    host.run("pkill -9 -f /opt/llamarack/tools/bin/python")
    output = fetch.communicate(timeout=120)[0]
    assert fetch.returncode != 0, output
    assert not host.file(model).exists
    hub("_faults", {})

    run = play("site.yml")
    assert run.status == 0, run.output
    assert int(host.run(f"cat {model}/*.gguf | wc -c").stdout) == total
    # What had arrived was not fetched again, but for what was still in the client's hands: four times 10 MiB.
    assert hub("_stats")["bytes"] - before < total + 5 * 10 * 1024**2
    assert host.run(f"find {model}/.. -name '*.partial' -o -name '*.incomplete'").stdout == ""
    assert "Paris" in completion()


def test_the_run_after_that_went_back_to_the_pinned_build_which_was_still_there(host: Host) -> None:
    assert "b11311-" in host.file(CURRENT).linked_to
    assert "/b11311-" in host.run(f"systemctl show -p ExecStart {UNIT}").stdout
