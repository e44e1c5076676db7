"""The http process's front door: `python -m skyserve_exec.server`, started by serve.

Room: http process. Ends when serve says so, and at once when serve is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Generator

import setproctitle
import uvicorn
import uvloop
from starlette.types import ASGIApp

from skyserve_exec import logsetup, settings
from skyserve_exec.messages import Message, Welcome
from skyserve_exec.server.app import build_app, build_state
from skyserve_exec.server.state import HttpState
from skyserve_exec.system import deathwatch
from skyserve_exec.system.channel import Channel, ChannelClosed
from skyserve_exec.system.endpoint import endpoint_of

log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 75
FAREWELL_SECONDS = 2
LOOK_SECONDS = 5.0
SPARE_DESCRIPTORS = 256
MOST_STREAMS = 10_000
BACKLOG = 2048


class HttpServer(uvicorn.Server):
    """uvicorn without its signals: serve decides when it ends."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def main() -> int:
    """Imports are done when this begins; reads Welcome, serves, ends at Goodbye."""
    environment = settings.child_environment()
    deathwatch.die_with_parent(environment.parent)
    setproctitle.setproctitle("sky: http")
    logsetup.configure_child(environment.settings)
    # uvicorn reports what the gate has handled already, and streams that are cut on purpose.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    assert environment.listener is not None
    listener = socket.socket(fileno=environment.listener)
    channel = Channel(socket.socket(fileno=environment.channel))
    try:
        welcome, early = receive_welcome(channel)
    except ChannelClosed:
        return 1
    http = build_state(welcome, channel, endpoint_of(listener))
    http.counts.stream_limit = raise_descriptor_limit()
    app = build_app(http)
    gc.collect()
    gc.freeze()
    # A large body becomes a million objects at once, none of them garbage: look for garbage less often.
    gc.set_threshold(50_000, 20, 50)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(app, http, listener, early))
    logging.shutdown()
    # Threads that wait for a dead disk must not hold the process.
    os._exit(0)


async def serve(app: ASGIApp, http: HttpState, listener: socket.socket, early: list[Message]) -> None:
    """Answers requests until serve says goodbye; `early` are the messages that came with the first one."""
    loop = asyncio.get_running_loop()
    server = HttpServer(
        uvicorn.Config(
            app,
            loop="none",
            http="httptools",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=FAREWELL_SECONDS,
        )
    )

    def end() -> None:
        server.should_exit = True

    http.link.attach(loop, early, on_lost=lost, on_goodbye=end)
    http.stalls.start(loop)
    looking = loop.create_task(look_after_waiting(http))
    keep_alive(listener)
    try:
        await server.serve(sockets=[listener])
    finally:
        looking.cancel()
        http.feeds.close()
        http.stalls.stop()


async def look_after_waiting(http: HttpState) -> None:
    """The safety net under the pushes: one query now and then, however many wait."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        awaited = http.waiting.awaited(longer_than=LOOK_SECONDS)
        if not awaited:
            continue
        try:
            http.waiting.learn(awaited, await http.reading.statuses(awaited))
        except Exception:
            log.exception("cannot look up how %d awaited requests stand", len(awaited))


def receive_welcome(channel: Channel) -> tuple[Welcome, list[Message]]:
    """Waits for serve's first message; what came right behind it.

    Raises:
        ChannelClosed: serve is gone.
    """
    messages: list[Message] = []
    while not messages:
        select.select([channel], [], [])
        messages = channel.receive()
    first, *rest = messages
    assert isinstance(first, Welcome)
    return first, rest


def raise_descriptor_limit() -> int:
    """As many descriptors as the system lets us have; how many streams that allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    now, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(MOST_STREAMS, max(16, (now - SPARE_DESCRIPTORS) // 2))


def keep_alive(listener: socket.socket) -> None:
    """Lets the kernel notice peers that are gone without a word; accepted sockets inherit this."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def lost() -> None:
    """serve is gone, and nothing can be answered truthfully any more."""
    log.error("the supervisor is gone; this http process ends")
    logging.shutdown()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
