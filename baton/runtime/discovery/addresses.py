"""Addresses in settings, written host:port."""

import ipaddress


def host_and_port(text: str) -> tuple[str, int]:
    """Split an address: "[::1]:80" -> ("::1", 80). Raises ValueError."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 2**16):
        raise ValueError(f"{text!r} is not host:port")
    return host, int(port)


def is_address(host: str) -> bool:
    """True for an IP address, False for a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
