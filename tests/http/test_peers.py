from __future__ import annotations

from pathlib import Path

import pytest

from agent.http.peers import (
    NodeAddresses,
    ipv4_gateways,
    ipv6_gateways,
    node_addresses,
    peer_name,
)
from agent.model.settings.options import SettingsError

ROUTE = """\
Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth0	00000000	0100F40A	0003	0	0	0	00000000	0	0	0
eth0	0000F40A	00000000	0001	0	0	0	00FFFFFF	0	0	0
"""
ROUTE6 = (
    "00000000000000000000000000000000 00 00000000000000000000000000000000 00 "
    "fd000000000000000000000000000001 00000400 00000001 00000000 00000003     eth0\n"
    "fd000000000000000000000000000000 40 00000000000000000000000000000000 00 "
    "00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0\n"
)
POD = NodeAddresses(["192.0.2.10"], ["10.244.0.1", "fd00::1"])
HOST = NodeAddresses()


@pytest.mark.parametrize(
    ("node", "peer", "own", "local"),
    [
        (POD, "192.0.2.10", "10.244.0.7", True),
        (POD, "10.244.0.1", "10.244.0.7", True),
        (POD, "::ffff:10.244.0.1", "::ffff:10.244.0.7", True),
        (POD, "fd00::1", "fd00::7", True),
        (POD, "10.244.0.9", "10.244.0.7", False),
        (POD, "192.0.2.11", "10.244.0.7", False),
        # A process in the host's network: its gateway is another machine.
        (POD, "10.244.0.1", "192.0.2.10", False),
        (POD, "192.0.2.10", "192.0.2.10", True),
        (HOST, "127.0.0.1", "127.0.0.1", True),
        (HOST, "127.8.9.1", "127.0.0.1", True),
        (HOST, "::1", "::1", True),
        (HOST, "192.0.2.10", "192.0.2.10", True),
        (HOST, "10.244.0.9", "192.0.2.10", False),
        (HOST, "fe80::1%eth0", "fe80::2%eth0", False),
    ],
)
def test_clients_of_the_node(node: NodeAddresses, peer: str, own: str, local: bool) -> None:
    assert node.local(peer, own) is local


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fd00::1:2:3:4", "fd00::/64"),
        ("fd00::5:6:7:8", "fd00::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_addresses_of_one_peer(address: str, name: str) -> None:
    assert peer_name(address) == name


def test_gateways_are_read_from_the_routing_tables() -> None:
    assert ipv4_gateways(ROUTE) == ["10.244.0.1"]
    assert ipv6_gateways(ROUTE6) == ["fd00::1"]


@pytest.mark.parametrize("text", ["", "Iface\n", "a b\nc d", "head\na b zz c\n", "head\na b 123 c"])
def test_other_texts_have_no_gateway(text: str) -> None:
    assert ipv4_gateways(text) == []
    assert ipv6_gateways(text) == []


def test_gateways_are_read_where_the_nodes_addresses_are_known(tmp_path: Path) -> None:
    (tmp_path / "route").write_text(ROUTE)
    node = node_addresses(" 192.0.2.10, 2001:db8::1 ", str(tmp_path))
    assert node.local("10.244.0.1", "10.244.0.7")
    assert node.local("2001:db8::1", "fd00::7")
    assert not node_addresses("", str(tmp_path)).local("10.244.0.1", "10.244.0.7")


def test_an_invalid_address_is_named() -> None:
    with pytest.raises(SettingsError, match=r"node-addresses: '10\.0\.0\.x' is not an address"):
        node_addresses("10.0.0.x")
