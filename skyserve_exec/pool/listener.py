"""The one listening socket: bound before anything is started, held by serve for life.

Room: serve, at start.
"""

from __future__ import annotations

import errno
import ipaddress
import socket

import psutil

from skyserve_exec.errors import BadInput, Conflict
from skyserve_exec.settings import Settings

BACKLOG = 2048


def listen(settings: Settings) -> socket.socket:
    """Binds and listens.

    Raises:
        Conflict: the port is taken; the message names the holder where it can be known.
        BadInput: the address is not one of this machine, or is open to others and there is no token.
    """
    family, address = _resolve(settings)
    if not settings.token and not ipaddress.ip_address(address).is_loopback:
        raise BadInput(
            f"host: {settings.host} can be reached from other machines, and the token is switched off",
            hint="Leave the token on, or listen on 127.0.0.1.",
        )
    listener = socket.socket(family, socket.SOCK_STREAM)
    # Only a port in TIME_WAIT is taken over; one that somebody listens on is still refused (socket(7)).
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family is socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if address == "::" else 1)
    try:
        listener.bind((address, settings.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _refused(settings, error) from None
    return listener


def _resolve(settings: Settings) -> tuple[socket.AddressFamily, str]:
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise BadInput(f"host: {settings.host!r} is no address: {error}", hint="Use 127.0.0.1.") from None
    family, _kind, _protocol, _name, address = found[0]
    return family, str(address[0])


def _refused(settings: Settings, error: OSError) -> Conflict | BadInput:
    where = f"{settings.host}:{settings.port}"
    if error.errno == errno.EADDRINUSE:
        return Conflict(
            f"port: {where} is in use by {_holder(settings.port)}",
            hint="Stop that one, or choose another port with --port (0 takes a free one).",
        )
    if error.errno == errno.EACCES:
        return BadInput(f"port: {where} is not allowed to this user", hint="Choose a port above 1023.")
    return BadInput(f"host: {where} cannot be listened on: {error.strerror}", hint="Use an address of this machine.")


def _holder(port: int) -> str:
    try:
        for item in psutil.net_connections("tcp"):
            if item.laddr and item.laddr.port == port and item.status == psutil.CONN_LISTEN and item.pid:
                return f"process {item.pid} ({psutil.Process(item.pid).name()})"
    except psutil.Error:
        return "another process"
    return "another process"
