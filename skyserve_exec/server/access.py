"""Who may talk to this server: the Host and Origin headers, the token, and the content type of what is posted.

A web page in a user's browser can send requests to loopback. It cannot choose its Origin, cannot send JSON without
being asked first, and with a rebound DNS name it sends a Host that is not ours.

Room: http process, event loop. Pure.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from skyserve_exec.errors import Forbidden, Unauthorized, WrongContentType

LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"})
WILDCARDS = frozenset({"", "0.0.0.0", "::"})
MOST_KNOWN_GOOD = 64


class Access:
    """The rules of one server. `token` None: no token is asked for."""

    def __init__(self, token: str | None, hosts: Iterable[str]) -> None:
        self._expected = None if token is None else token.encode()
        self._hosts = {name.lower().strip("[]") for name in hosts} - WILDCARDS
        self._known_good: set[tuple[bytes, str]] = set()

    def check(self, headers: Mapping[bytes, bytes], local_address: str) -> None:
        """Lets a request pass.

        Raises:
            Forbidden: the Host or Origin is foreign.
            Unauthorized: the token is missing or wrong.
        """
        host = headers.get(b"host", b"")
        if (host, local_address) not in self._known_good:
            self._check_host(host, local_address)
        origin = headers.get(b"origin")
        if origin is not None:
            self._check_origin(origin, local_address)
        if self._expected is not None:
            self._check_token(headers.get(b"authorization", b""))

    def is_ours(self, name: str | None, local_address: str) -> bool:
        """Whether a host name or address means this server, as seen from the connection's own end."""
        if not name:
            return False
        name = name.lower().strip("[]").rstrip(".")
        local_address = local_address.removeprefix("::ffff:")  # IPv4 on a socket for both
        return name in LOOPBACK_NAMES or name in self._hosts or name == local_address or _is_loopback(name)

    def _check_host(self, host: bytes, local_address: str) -> None:
        if not self.is_ours(_host_name(f"//{host.decode('latin-1')}"), local_address):
            raise Forbidden(
                f"Host: {_shown(host)} is not a name of this server",
                hint="Add it with --allowed-hosts or SKYSERVE_ALLOWED_HOSTS where the server is started.",
            )
        # Bounded, because a client chooses the port in the header.
        if len(self._known_good) < MOST_KNOWN_GOOD:
            self._known_good.add((host, local_address))

    def _check_origin(self, origin: bytes, local_address: str) -> None:
        text = origin.decode("latin-1")
        if text.startswith(("http://", "https://")) and self.is_ours(_host_name(text), local_address):
            return
        raise Forbidden(
            f"Origin: {_shown(origin)} may not use this server",
            hint="Pages of other sites may not call it; add the site's host with --allowed-hosts if it shall.",
        )

    def _check_token(self, authorization: bytes) -> None:
        scheme, _, given = authorization.partition(b" ")
        if self._expected is None:
            return
        if scheme.lower() != b"bearer" or not given:
            raise Unauthorized("a token is required")
        if not hmac.compare_digest(given.strip(), self._expected):
            raise Unauthorized("the token is not the one of this server")


def check_content_type(headers: Mapping[bytes, bytes]) -> None:
    """What is posted must say that it is JSON.

    Raises:
        WrongContentType: it says something else, or nothing.
    """
    given = headers.get(b"content-type", b"")
    if given == b"application/json":
        return
    kind = given.partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise WrongContentType(f"Content-Type: {_shown(given)} is not application/json")


def _host_name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _shown(value: bytes) -> str:
    return ascii(value.decode("latin-1")[:100])
