"""The executor's loop: wait for a request, run it, report; leave when told, when not reusable, or when serve is gone.

    serve ──Run──▶ run_request ──Finished | HandOff──▶ serve

SIGTERM means: stop the request that is running. The handler acts only while one runs, and only once; the Interrupt
message, which serve sends before the signal, says which request is meant and why. A signal that comes while a request
is being set up is kept for its first moment. An idle executor just leaves.

Room: executor process, main thread.
"""

from __future__ import annotations

import os
import select
import signal
from collections import deque
from types import FrameType

from skyserve_exec.errors import DeadlineExceeded, RequestCancelled, RequestInterrupted, ServerShutdown
from skyserve_exec.executor.baseline import Baseline
from skyserve_exec.executor.loaded_operations import LoadedOperations
from skyserve_exec.executor.run_request import Running, run_request
from skyserve_exec.messages import Interrupt, Leave, Message, Run
from skyserve_exec.settings import Settings
from skyserve_exec.states import Cause
from skyserve_exec.system.channel import Channel, ChannelClosed

EXCEPTIONS: dict[str, type[RequestInterrupted]] = {
    Cause.CANCEL: RequestCancelled,
    Cause.DEADLINE: DeadlineExceeded,
    Cause.SHUTDOWN: ServerShutdown,
}


class _IdleLeave(BaseException):
    """SIGTERM came while nothing ran."""


def serve_requests(channel: Channel, slot: str, operations: LoadedOperations, settings: Settings) -> int:
    """Runs requests until it has to leave; the process's exit code."""
    inbox = _Inbox(channel)
    signal.signal(signal.SIGTERM, inbox.on_sigterm)
    baseline = Baseline.take()
    try:
        while True:
            message = inbox.next_message()
            if isinstance(message, Leave):
                return 0
            if isinstance(message, Run):
                if baseline.served == 0:
                    inbox.look_for_interrupt(message.request_id)
                report = run_request(message, inbox.running, operations, settings, baseline, slot)
                channel.send(report)
                channel.flush_blocking()
                if not report.reusable:
                    return 0
    except (ChannelClosed, _IdleLeave):
        return 0


class _Inbox:
    """Messages from serve, read by the loop while idle and by the signal handler while a request runs."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._messages: deque[Message] = deque()
        self._idle = False
        self.running = Running()
        self._poll = select.poll()
        self._poll.register(channel.fileno(), select.POLLIN)

    def next_message(self) -> Message:
        """Blocks until serve says something."""
        self.running.signalled_early = False
        while not self._messages:
            self._idle = True
            self._poll.poll()
            self._idle = False
            self._messages.extend(self._channel.receive())
        return self._messages.popleft()

    def look_for_interrupt(self, request_id: str) -> None:
        """Finds the message whose signal came before this process could take it: between its fork and its handler."""
        self._messages.extend(self._channel.receive())
        if any(isinstance(item, Interrupt) and item.request_id == request_id for item in self._messages):
            self.running.signalled_early = True

    def on_sigterm(self, _signum: int, _frame: FrameType | None) -> None:
        if self._idle:
            raise _IdleLeave
        request_id = self.running.request_id
        if request_id is None:
            self.running.signalled_early = True
            return
        if self.running.interrupted:
            return
        exception = self._cause_of(request_id)
        if exception is not None:
            self.running.interrupted = True
            raise exception

    def _cause_of(self, request_id: str) -> RequestInterrupted | None:
        try:
            self._messages.extend(self._channel.receive())
        except ChannelClosed:
            return ServerShutdown("the server is gone")
        meant = [item for item in self._messages if isinstance(item, Interrupt)]
        self._messages = deque(item for item in self._messages if not isinstance(item, Interrupt))
        for interrupt in meant:
            if interrupt.request_id == request_id:
                return EXCEPTIONS[interrupt.cause](f"request {request_id}: {interrupt.cause}")
        # An Interrupt for a request that is over must not hit the one that runs now.
        return None if meant else RequestInterrupted(f"SIGTERM from outside to process {os.getpid()}")
