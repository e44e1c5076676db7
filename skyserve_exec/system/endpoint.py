"""The URL of a listening socket.

Room: serve and http.
"""

from __future__ import annotations

import socket


def endpoint_of(listener: socket.socket) -> str:
    """The URL a client on this machine uses."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
