"""What the stories share: running the product as its owner does, and asking the server as a client does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import testinfra
from testinfra.host import Host

REPO = Path(__file__).resolve().parents[3]
INVENTORY = REPO / "molecule" / "default" / "inventory"
SSH_CONFIG = Path.home() / ".cache" / "llamarack" / "molecule" / "ssh_config"
HUB = "http://10.89.77.2:8000"
UNIT = "llamarack@main"
KEY_FILE = "/etc/llamarack/main/api.key"
REPOSITORY = "llamarack/gemma-3-270m-GGUF"

# Runs on the host: one request, answered with its status and body. No curl on a minimal server.
ASK = """
import json, sys, urllib.error, urllib.request
url, body, key = sys.argv[1:4]
headers = {"Content-Type": "application/json"}
if key:
    headers["Authorization"] = "Bearer " + open(key).read().strip()
try:
    answer = urllib.request.urlopen(urllib.request.Request(url, body.encode() or None, headers), timeout=60)
    print(json.dumps([answer.status, answer.read().decode()]))
except urllib.error.HTTPError as error:
    print(json.dumps([error.code, error.read().decode()]))
"""


@dataclass(frozen=True)
class Run:
    """What a playbook printed and came to."""

    status: int
    output: str

    def recap(self, word: str, host: str = "debian12") -> int:
        """A number of the recap of a host: ``changed``, ``failed``, ``unreachable``."""
        found = re.search(rf"^{host}\s*:.*\b{word}=(\d+)", self.output, re.MULTILINE)
        assert found, self.output
        return int(found[1])


# Most stories are about the host with systemd, and need not wait for the other.
ONE = "--limit=debian12,localhost"
BOTH = "--limit=all,localhost"


def command_line(playbook: str, *arguments: str) -> list[str]:
    """The owner's command."""
    program = Path(sys.executable).with_name("ansible-playbook")
    limit = [] if any(argument.startswith("--limit") for argument in arguments) else [ONE]
    return [str(program), str(REPO / playbook), f"--inventory={INVENTORY}", *limit, *arguments]


# Molecule asks for colours, which the eye likes and a search does not.
ENVIRONMENT = {
    **os.environ,
    "ANSIBLE_CONFIG": str(REPO / "ansible.cfg"),
    "ANSIBLE_FORCE_COLOR": "0",
    "ANSIBLE_NOCOLOR": "1",
}


@pytest.fixture(scope="session")
def play() -> Callable[..., Run]:
    """Run a playbook against the host and wait for its end."""

    def run(playbook: str, *arguments: str) -> Run:
        done = subprocess.run(
            command_line(playbook, *arguments),
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=3000,
            check=False,
        )
        return Run(done.returncode, done.stdout + done.stderr)

    return run


@pytest.fixture(scope="session")
def start_play() -> Callable[..., subprocess.Popen[str]]:
    """Start a playbook, for a test that wants to be in its way."""

    def start(playbook: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command_line(playbook, *arguments),
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


@pytest.fixture(scope="session")
def hub() -> Callable[..., Any]:
    """Talk to the hub's own end points: ``hub("_stats")``, ``hub("_faults", {…})``."""

    def ask(path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(f"{HUB}/{path}", data, timeout=10) as answer:
            return json.loads(answer.read() or b"null")

    return ask


@pytest.fixture
def ask(host: Host) -> Callable[..., tuple[int, Any]]:
    """Send one request to the server, from the host itself."""

    def send(path: str, body: dict[str, Any] | None = None, key_file: str = KEY_FILE) -> tuple[int, Any]:
        text = "" if body is None else json.dumps(body)
        done = host.run("python3 -c %s %s %s %s", ASK, f"http://127.0.0.1:8080{path}", text, key_file)
        assert done.rc == 0, done.stderr + journal(host)
        status, answer = json.loads(done.stdout)
        return status, json.loads(answer)

    return send


@pytest.fixture
def completion(ask: Callable[..., tuple[int, Any]]) -> Callable[[], str]:
    """Ask for a completion and return its text."""

    def complete() -> str:
        status, answer = ask(
            "/v1/completions", {"prompt": "The Eiffel Tower stands in the city of", "max_tokens": 4, "temperature": 0}
        )
        assert status == 200, answer
        return str(answer["choices"][0]["text"])

    return complete


@pytest.fixture(scope="session")
def pod() -> Host:
    """The container without systemd."""
    return testinfra.get_host("ssh://root@10.89.77.12", ssh_config=str(SSH_CONFIG))


def journal(host: Host) -> str:
    """The last lines of the service, for a test that failed."""
    return str(host.run(f"journalctl --unit {UNIT} --lines 40 --no-pager").stdout)
