"""Who listens on a TCP port, from ``/proc/net/tcp`` and ``/proc/net/tcp6``. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

LISTENING = "0A"


@dataclass(frozen=True)
class Listener:
    """A listening socket: address, port, the user it belongs to, and the inode by which its process is found."""

    address: str
    port: int
    uid: int
    inode: int


def parse_listeners(text: str) -> Iterator[Listener]:
    """The listening sockets of one of the kernel's tables; lines that are none are passed over."""
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 10 or fields[3] != LISTENING or ":" not in fields[1]:
            continue
        address, _, port = fields[1].partition(":")
        try:
            yield Listener(address_text(address), int(port, 16), int(fields[7]), int(fields[9]))
        except ValueError:
            continue


def address_text(digits: str) -> str:
    """An address as people write it: the kernel prints words of 32 bits in the machine's (little-endian) order.

    :raises ValueError: when it is no address.
    """
    words = bytes.fromhex(digits)
    raw = b"".join(words[start : start + 4][::-1] for start in range(0, len(words), 4))
    address = ipaddress.ip_address(raw)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def collide(wanted: str, taken: str) -> bool:
    """Whether a socket for one address keeps another from the same port. Names count as loopback."""
    if wanted == "localhost":
        wanted = "127.0.0.1"
    wildcards = ("0.0.0.0", "::")
    return wanted == taken or wanted in wildcards or taken in wildcards


def in_the_way(listeners: Iterable[Listener], host: str, port: int) -> list[Listener]:
    """The sockets that keep a server from listening on a host's port."""
    return [listener for listener in listeners if listener.port == port and collide(host, listener.address)]


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address. A name other than localhost is not taken for one."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
