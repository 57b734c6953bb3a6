"""The network interfaces in the network namespace of a process (network_namespaces(7)), and the bus
address of each: by the driver's information of ethtool (ioctl SIOCETHTOOL of netdevice(7))."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import struct
import threading
from typing import Final

_NEW_NETWORK: Final = 0x40000000
"""CLONE_NEWNET."""
_ETHTOOL: Final = 0x8946
"""SIOCETHTOOL."""
_GET_DRIVER: Final = struct.pack("I192x", 3)
"""An ethtool_drvinfo for ETHTOOL_GDRVINFO."""
_BUS: Final = slice(100, 132)
"""The address in an ethtool_drvinfo."""
_MOST_INTERFACES: Final = 1024
"""A pod that may make interfaces in its namespace can make any number of them."""
_SECONDS: Final = 5.0


def buses(namespace: int) -> dict[str, str]:
    """The address of each interface by its name: `0000:3b:00.2` for a PCI function, "" for
    interfaces without one.

    `namespace`: a descriptor of the namespace.

    Raises OSError: EPERM without CAP_SYS_ADMIN, ETIMEDOUT while the kernel changes interfaces."""
    address_of: dict[str, str] = {}
    errors: list[OSError] = []

    def read() -> None:
        try:
            _enter(namespace)
            address_of.update(_buses())
        except OSError as error:
            errors.append(error)

    # The namespace belongs to the thread, which ends here; so no other code runs in it.
    thread = threading.Thread(target=read, name="network-namespace", daemon=True)
    thread.start()
    thread.join(_SECONDS)
    if thread.is_alive():
        raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
    for error in errors:
        raise error
    return address_of


def _enter(namespace: int) -> None:
    import ctypes  # half a megabyte that few nodes need

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _NEW_NETWORK):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _buses() -> dict[str, str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as any_socket:
        names = [name for _, name in socket.if_nameindex()[:_MOST_INTERFACES]]
        return {name: _bus(any_socket, name) for name in names}


def _bus(any_socket: socket.socket, name: str) -> str:
    driver = array.array("B", _GET_DRIVER)
    request = struct.pack("16sP16x", os.fsencode(name), driver.buffer_info()[0])
    try:
        fcntl.ioctl(any_socket, _ETHTOOL, request)
    except OSError:
        return ""  # It has no driver, such as `lo`, or is gone.
    return driver.tobytes()[_BUS].partition(b"\0")[0].decode("ascii", "replace")
