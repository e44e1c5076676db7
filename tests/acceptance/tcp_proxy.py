"""A bad network: a TCP proxy on loopback that can cut what flows through it, and swallow what is answered."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit


class Proxy:
    """Passes connections on to one port. `cut` breaks all of them; `away` refuses new ones."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._target = (str(parts.hostname), int(parts.port or 80))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self.cuts = 0
        self.is_away = False
        self.swallow_next = False
        self._over = False
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self) -> None:
        """Breaks every connection now."""
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        self.cuts += bool(pairs)
        for end in pairs:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._over = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while not self._over:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.is_away:
                client.close()
                continue
            try:
                server = socket.create_connection(self._target, timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            self.connections += 1
            with self._lock:
                self._pairs |= {client, server}
            for source, sink, answers in ((client, server, False), (server, client, True)):
                thread = threading.Thread(target=self._copy, args=(source, sink, answers), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _copy(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        try:
            while data := source.recv(65536):
                if answers and self.swallow_next:
                    self.swallow_next = False
                    break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            gone = {source, sink} & self._pairs
            self._pairs -= gone
        for end in (source,):
            end.close()


@contextlib.contextmanager
def proxy_to(target: str) -> Iterator[Proxy]:
    """A proxy that is closed, with all its threads ended, afterwards."""
    proxy = Proxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
