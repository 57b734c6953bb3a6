"""Decides which clients connect from the node itself, such as the kubelet with its probes, and
which addresses count as one peer.

For a process on the host, such a client has the same address as the process, or a loopback address.
For a process in a pod, it has an address of the node, which the pod knows from the downward API, or
the address of the bridge, which is the pod's gateway (the plugins bridge and ptp of CNI).

Addresses are compared in the kernel's form: ipaddress would take the proxy 0.3 MB.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Collection
from typing import Final

from agent.model.settings.options import SettingsError

_IPV6_NETWORK_BYTES: Final = 8
_IPV4_IN_IPV6: Final = bytes(10) + b"\xff\xff"
_IPV6_LOOPBACK: Final = bytes(15) + b"\x01"
_MAX_ROUTES_BYTES: Final = 1 << 16
_NET: Final = "/proc/self/net"


class NodeAddresses:
    """The node's own addresses.

    `gateways`: the gateways of the process's network, which count only if the server's address is
        not one of the node, because the gateway of a node is another machine.

    Raises SettingsError."""

    def __init__(self, configured: Collection[str] = (), gateways: Collection[str] = ()) -> None:
        self._configured = frozenset(map(_address, configured))
        self._gateways = frozenset(map(_address, gateways))

    def local(self, peer: str, own: str) -> bool:
        """Whether the client at `peer` is on the node of the server, which it reached at `own`."""
        client, server = _address(peer), _address(own)
        if _is_loopback(client) or client == server or client in self._configured:
            return True
        in_pod = bool(self._configured) and server not in self._configured
        return in_pod and client in self._gateways


def node_addresses(configured: str, net: str = _NET) -> NodeAddresses:
    """The addresses in `configured`, separated by commas, and the gateways of this process's
    network below `net`, a folder as /proc/self/net.

    Raises SettingsError."""
    names = [name.strip() for name in configured.split(",") if name.strip()]
    gateways = (*ipv4_gateways(_read(f"{net}/route")), *ipv6_gateways(_read(f"{net}/ipv6_route")))
    return NodeAddresses(names, gateways if names else ())


def peer_name(address: str) -> str:
    """The name under which the connections of an address are counted: an IPv4 address, or the IPv6
    network of 64 bits, in which a host may have any number of addresses."""
    packed = _address(address)
    if len(packed) == 4:
        return socket.inet_ntop(socket.AF_INET, packed)
    network = packed[:_IPV6_NETWORK_BYTES] + bytes(len(packed) - _IPV6_NETWORK_BYTES)
    return f"{socket.inet_ntop(socket.AF_INET6, network)}/{8 * _IPV6_NETWORK_BYTES}"


def ipv4_gateways(text: str) -> list[str]:
    """The gateways in the text of /proc/net/route (fib_route_seq_show of net/ipv4/fib_trie.c): the
    third column, in the machine's byte order."""
    lines = (line.split() for line in text.splitlines()[1:])
    numbers = {words[2] for words in lines if len(words) > 2}
    return [
        socket.inet_ntop(socket.AF_INET, struct.pack("=I", int(number, 16)))
        for number in sorted(numbers)
        if re.fullmatch("[0-9A-Fa-f]{8}", number) and int(number, 16)
    ]


def ipv6_gateways(text: str) -> list[str]:
    """The gateways in the text of /proc/net/ipv6_route (rt6_info_route of net/ipv6/route.c): the
    fifth column."""
    lines = (line.split() for line in text.splitlines())
    numbers = {words[4] for words in lines if len(words) > 4}
    return [
        socket.inet_ntop(socket.AF_INET6, bytes.fromhex(number))
        for number in sorted(numbers)
        if re.fullmatch("[0-9a-f]{32}", number) and int(number, 16)
    ]


def is_loopback(address: str) -> bool:
    """Whether a client with this address is in the same network as this process: in the same pod,
    on the same machine, or at the other end of a port-forward."""
    return _is_loopback(_address(address))


def _address(text: str) -> bytes:
    """The 16 bytes of an IPv6 address, or the 4 of an IPv4 address, also in IPv6's form. Raises
    SettingsError."""
    plain = text.partition("%")[0]
    family = socket.AF_INET6 if ":" in plain else socket.AF_INET
    try:
        packed = socket.inet_pton(family, plain)
    except (OSError, ValueError):
        raise SettingsError(f"node-addresses: {text[:60]!r} is not an address") from None
    return packed.removeprefix(_IPV4_IN_IPV6) if len(packed) == 16 else packed


def _is_loopback(packed: bytes) -> bool:
    return packed == _IPV6_LOOPBACK or (len(packed) == 4 and packed[0] == 127)


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(_MAX_ROUTES_BYTES).decode("ascii", "replace")
    except OSError:
        return ""
