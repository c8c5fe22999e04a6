"""A container without systemd: the same server, supervised by supervisord."""

from __future__ import annotations

import json
import time

from testinfra.host import Host

STATUS = "supervisorctl -c /etc/llamarack/supervisord.conf status tiny"
KEY_FILE = "/etc/llamarack/tiny/api.key"
HEALTH = "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/health', timeout=2)"


def process(pod: Host) -> str:
    """Process number of the server, as supervisord tells it."""
    words = pod.run(STATUS).stdout.split()
    assert words[1] == "RUNNING", words
    return str(words[3].rstrip(","))


def test_nothing_here_is_systemd(pod: Host) -> None:
    assert pod.file("/proc/1/comm").content_string.strip() != "systemd"
    assert not pod.file("/run/systemd/system").exists


def test_the_server_runs_as_its_own_user(pod: Host) -> None:
    assert pod.file(f"/proc/{process(pod)}").user == "llamarack"


def test_the_key_is_the_services_alone_and_stands_in_no_command_line(pod: Host) -> None:
    key_file = pod.file(KEY_FILE)
    assert (key_file.user, key_file.mode) == ("llamarack", 0o400)
    key = key_file.content_string.strip()
    seen = pod.run("ps -ww -eo args; cat /etc/llamarack/tiny/supervisor.conf /var/log/llamarack/*.log").stdout
    assert "--api-key-file" in seen
    assert key not in seen


def test_a_model_of_k2s_own_architecture_was_accepted(pod: Host) -> None:
    record = json.loads(pod.file("/var/lib/llamarack/instances/tiny/acceptance.json").content_string)
    assert record["verdict"] == "passed", record
    model = json.loads(pod.file("/var/lib/llamarack/models/tiny-kimi-k2/model.json").content_string)
    assert model["gguf"]["architecture"] == "deepseek2"
    assert model["gguf"]["expert_count"] == 16
    assert len(model["splits"]) == 3


def test_a_killed_server_comes_back_by_itself(pod: Host) -> None:
    pid = process(pod)
    assert pod.run(f"kill -9 {pid}").rc == 0
    end = time.monotonic() + 60
    while pod.run(f'python3 -c "{HEALTH}"').rc != 0 or pid in pod.run(STATUS).stdout:
        assert time.monotonic() < end, pod.run("tail -n 40 /var/log/llamarack/tiny.log").stdout
        time.sleep(0.5)
