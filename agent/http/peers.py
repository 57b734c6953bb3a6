"""Which clients connect from the node itself, such as the kubelet with its probes, and which
addresses count as one peer.

A process on the host sees such a client with its own address, or with a loopback address. In a pod
the client has an address of the node, which the pod knows from the downward API, or that of the
bridge, which is the pod's gateway (the plugins bridge and ptp of CNI).
"""

from __future__ import annotations

import ipaddress
import re
import struct
from collections.abc import Collection
from typing import Final

from agent.model.settings.options import SettingsError

_IPV6_NETWORK_BITS: Final = 64
_MOST_ROUTES_BYTES: Final = 1 << 16
_NET: Final = "/proc/self/net"


class NodeAddresses:
    """The node's own addresses. `gateways` count only where the server's address is not the node's:
    the gateway of the host is another machine."""

    def __init__(self, configured: Collection[str] = (), gateways: Collection[str] = ()) -> None:
        """Raises SettingsError."""
        self._configured = frozenset(map(_address, configured))
        self._gateways = frozenset(map(_address, gateways))

    def local(self, peer: str, own: str) -> bool:
        """Whether the client at `peer` is on the node of the server, which it reached at `own`."""
        client, server = _address(peer), _address(own)
        if client.is_loopback or client == server or client in self._configured:
            return True
        in_pod = bool(self._configured) and server not in self._configured
        return in_pod and client in self._gateways


def node_addresses(configured: str, net: str = _NET) -> NodeAddresses:
    """`configured`: addresses separated by commas. Reads the gateways of this process's network
    below `net`, a folder as /proc/self/net. Raises SettingsError."""
    names = [each.strip() for each in configured.split(",") if each.strip()]
    found = (*ipv4_gateways(_read(f"{net}/route")), *ipv6_gateways(_read(f"{net}/ipv6_route")))
    return NodeAddresses(names, found if names else ())


def peer_name(address: str) -> str:
    """The name under which the connections of an address are counted: an IPv6 host has as many
    addresses as it likes in its network of 64 bits."""
    parsed = _address(address)
    if parsed.version == 4:
        return str(parsed)
    network = ipaddress.ip_network((parsed, _IPV6_NETWORK_BITS), strict=False)
    return str(network)


def ipv4_gateways(text: str) -> list[str]:
    """Of /proc/net/route (fib_route_seq_show of net/ipv4/fib_trie.c): the third column, in the
    machine's byte order."""
    lines = (line.split() for line in text.splitlines()[1:])
    numbers = {words[2] for words in lines if len(words) > 2}
    return [
        str(ipaddress.IPv4Address(struct.pack("=I", int(number, 16))))
        for number in sorted(numbers)
        if re.fullmatch("[0-9A-Fa-f]{8}", number) and int(number, 16)
    ]


def ipv6_gateways(text: str) -> list[str]:
    """Of /proc/net/ipv6_route (rt6_info_route of net/ipv6/route.c): the fifth column."""
    lines = (line.split() for line in text.splitlines())
    numbers = {words[4] for words in lines if len(words) > 4}
    return [
        str(ipaddress.IPv6Address(bytes.fromhex(number)))
        for number in sorted(numbers)
        if re.fullmatch("[0-9a-f]{32}", number) and int(number, 16)
    ]


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        raise SettingsError(f"node-addresses: {text[:60]!r} is not an address") from None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(_MOST_ROUTES_BYTES).decode("ascii", "replace")
    except OSError:
        return ""
