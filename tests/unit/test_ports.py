"""Who listens where."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from ansible_collections.llamarack.core.plugins.module_utils import ports
from hypothesis import given
from hypothesis import strategies as st

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000   998        0 4242 1 0000000000000000 100 0
   1: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4243 1 0000000000000000 100 0
   2: 0100007F:1F91 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 4244 1 0000000000000000 100 0
"""
TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue
   0: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 77
   1: 00000000000000000000000001000000:1F92 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 78
   2: 0000000000000000FFFF00000100007F:1F93 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 79
"""


def test_only_listening_sockets_count() -> None:
    assert list(ports.parse_listeners(TCP)) == [
        ports.Listener("127.0.0.1", 8080, 998, 4242),
        ports.Listener("0.0.0.0", 22, 0, 4243),
    ]


def test_addresses_of_version_6_are_read_in_the_machines_order() -> None:
    assert [(entry.address, entry.port) for entry in ports.parse_listeners(TCP6)] == [
        ("::", 80),
        ("::1", 8082),
        ("127.0.0.1", 8083),
    ]


@pytest.mark.parametrize(
    ("host", "port", "blocked"),
    [
        ("127.0.0.1", 8080, True),
        ("localhost", 8080, True),
        ("0.0.0.0", 8080, True),
        ("192.0.2.1", 8080, False),
        ("127.0.0.1", 22, True),
        ("127.0.0.1", 8081, False),
    ],
)
def test_a_wildcard_is_in_the_way_of_every_address(host: str, port: int, blocked: bool) -> None:
    assert bool(ports.in_the_way(ports.parse_listeners(TCP), host, port)) is blocked


@given(st.text())
def test_whatever_the_table_holds_nothing_breaks(text: str) -> None:
    list(ports.parse_listeners(text))


def test_this_machines_own_table_shows_a_socket_that_was_just_opened() -> None:
    table = Path("/proc/net/tcp")
    if not table.exists():
        pytest.skip("no /proc here")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert ports.in_the_way(ports.parse_listeners(table.read_text()), "127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("a.b", False)],
)
def test_what_only_this_machine_reaches(host: str, loopback: bool) -> None:
    assert ports.is_loopback(host) is loopback
