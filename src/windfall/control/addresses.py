"""Where a user's webhook may lead: not to what only the controller's own machine can reach.

The name is looked up once, every address it has is checked, and the connection is made to the address that was checked:
a name that means something else a moment later leads nowhere else.
"""

from __future__ import annotations

import ipaddress
import socket

_INSIDE = tuple(
    ipaddress.ip_network(text)
    for text in (
        "168.63.129.16/32",  # Azure's host, which hands out a virtual machine's goal state
        "100.100.100.200/32",  # Alibaba's metadata
        "192.0.0.192/32",  # Oracle's metadata
        "fd00:ec2::/32",  # Amazon's metadata and time over IPv6
        "0.0.0.0/8",
        "::/128",
    )
)
_EMBEDDED = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("::/96"))
"""IPv6 prefixes whose last 32 bits are an IPv4 address."""


def inside(address: str) -> bool:
    """Say whether an address is this machine, its link, or a cloud's metadata service: nobody's webhook is there."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        other = found.ipv4_mapped or found.sixtofour
        for network in _EMBEDDED:
            if found in network:
                other = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if other is not None and not found.is_loopback and not found.is_unspecified:
            return inside(str(other))
    special = (
        found.is_loopback or found.is_link_local or found.is_multicast or found.is_unspecified or found.is_reserved
    )
    return special or any(found.version == network.version and found in network for network in _INSIDE)


def outside(host: str, port: int) -> str | None:
    """Return an address of a host that a webhook may use; None if one of its addresses is not for webhooks.

    Raises:
        OSError: the host is not known.
    """
    found = [str(one[4][0]) for one in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    return None if any(inside(address) for address in found) else found[0]
