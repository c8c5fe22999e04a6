"""The module llama_ports, on this machine's own sockets."""

from __future__ import annotations

import getpass
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.llamarack.core.plugins.modules import llama_ports

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads /proc")

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the module for one instance."""

    def call(user: str = "nobody-of-that-name", **instance: Any) -> dict[str, Any]:
        with patch_module_args({"instances": {"main": instance}, "user": user}), pytest.raises(SystemExit):
            llama_ports.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    return call


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which this process listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_port_in_use_is_told_with_its_owner(run: Run, taken: int) -> None:
    message = run(port=taken)["msg"]
    assert f"Port {taken} of instance main is in use" in message
    assert f"(process {os.getpid()})" in message
    assert "give the instance another port" in message


def test_ones_own_server_is_not_in_the_way(run: Run, taken: int) -> None:
    assert "failed" not in run(user=getpass.getuser(), port=taken)


def test_a_free_port_is_fine(run: Run, taken: int) -> None:
    assert "failed" not in run(port=taken, host="127.0.0.2")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "server.example.org"])
def test_nobody_gets_in_from_outside_without_a_key(run: Run, host: str) -> None:
    assert "without an API key" in run(port=1, host=host, api_key_required=False)["msg"]
    assert "failed" not in run(port=1, host="127.0.0.1", api_key_required=False)


@pytest.mark.parametrize("instance", [{}, {"port": "eighty"}, {"port": None}])
def test_an_instance_without_a_usable_port_is_told_so(run: Run, instance: dict[str, Any]) -> None:
    assert "has no usable port" in run(**instance)["msg"]
