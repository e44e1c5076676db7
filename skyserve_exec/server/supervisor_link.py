"""The asyncio end of the channel to serve: tickets become futures, pushes reach those who wait.

Room: http process, event loop. Never blocks: what the socket does not take waits in the outbox.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable

from skyserve_exec import errors
from skyserve_exec.errors import SkyserveError, Unavailable
from skyserve_exec.messages import (
    Accepted,
    Cancel,
    CancelDone,
    Draining,
    Goodbye,
    Message,
    Refused,
    Settled,
    Snapshot,
    Started,
    Submit,
)
from skyserve_exec.server.waiting import Waiting
from skyserve_exec.system.channel import Channel, ChannelClosed

MOST_UNSENT = 256 * 1024 * 1024
ANSWER_SECONDS = 60.0


class SupervisorLink:
    """What http knows of serve. `on_lost` is called when serve is gone, `on_goodbye` when it says so."""

    def __init__(self, channel: Channel, waiting: Waiting) -> None:
        self._channel = channel
        self._waiting = waiting
        self._tickets = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Message]] = {}
        self._on_lost: Callable[[], None] = lambda: None
        self._on_goodbye: Callable[[], None] = lambda: None
        self._loop: asyncio.AbstractEventLoop  # from attach on
        self._writing = False
        self.draining = False
        self.snapshot: Snapshot | None = None
        self.snapshot_at = time.monotonic()

    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        early: list[Message],
        *,
        on_lost: Callable[[], None],
        on_goodbye: Callable[[], None],
    ) -> None:
        """Starts to listen; called once, on the loop. `early`: messages that were received before."""
        self._loop, self._on_lost, self._on_goodbye = loop, on_lost, on_goodbye
        for message in early:
            self._take(message)
        loop.add_reader(self._channel.fileno(), self._readable)

    @property
    def silent_seconds(self) -> float:
        """How long ago serve last said how it is doing."""
        return time.monotonic() - self.snapshot_at

    def ticket(self) -> int:
        return next(self._tickets)

    async def submit(self, request: Submit) -> Accepted:
        """Hands a request to serve; it is durable when this returns.

        Raises:
            SkyserveError: serve refused it, and nothing was written.
            Unavailable: serve did not answer; whether it was taken is not known.
        """
        answer = await self._ask(request.ticket, request)
        assert isinstance(answer, Accepted)
        return answer

    async def cancel(self, request: Cancel) -> dict[str, str]:
        """What the cancel did, per request id. Errors as in `submit`."""
        answer = await self._ask(request.ticket, request)
        assert isinstance(answer, CancelDone)
        return answer.outcomes

    def cancel_unheard(self, request: Cancel) -> None:
        """A cancel whose answer nobody needs."""
        self._send(request)

    async def _ask(self, ticket: int, message: Message) -> Message:
        if self._channel.outbox_bytes > MOST_UNSENT:
            raise Unavailable("the supervisor does not take requests fast enough", hint="Try again in a moment.")
        future: asyncio.Future[Message] = self._loop.create_future()
        self._answers[ticket] = future
        timer = self._loop.call_later(ANSWER_SECONDS, self._give_up, ticket)
        try:
            self._send(message)
            answer = await future
        finally:
            timer.cancel()
            self._answers.pop(ticket, None)
        if isinstance(answer, Refused):
            raise refusal(answer)
        return answer

    def _give_up(self, ticket: int) -> None:
        future = self._answers.get(ticket)
        if future is not None and not future.done():
            future.set_exception(
                Unavailable(
                    f"the supervisor has not answered within {ANSWER_SECONDS:g} s; the request may still be taken",
                    hint="Look for it with 'sky api status' before sending it again, or use an Idempotency-Key.",
                )
            )

    def _send(self, message: Message) -> None:
        try:
            self._channel.send(message)
        except ChannelClosed:
            self._on_lost()
        self._await_room()

    def _await_room(self) -> None:
        if self._channel.wants_write and not self._writing:
            self._writing = True
            self._loop.add_writer(self._channel.fileno(), self._writable)

    def _writable(self) -> None:
        try:
            self._channel.flush()
        except ChannelClosed:
            self._on_lost()
        if not self._channel.wants_write:
            self._writing = False
            self._loop.remove_writer(self._channel.fileno())

    def _readable(self) -> None:
        try:
            messages = self._channel.receive()
        except ChannelClosed:
            self._on_lost()
            return
        for message in messages:
            self._take(message)

    def _take(self, message: Message) -> None:
        match message:
            case Accepted() | Refused() | CancelDone():
                future = self._answers.get(message.ticket)
                if future is not None and not future.done():
                    future.set_result(message)
            case Settled():
                self._waiting.settle(message.records)
            case Started():
                self._waiting.start(message.request_ids)
            case Snapshot():
                self.snapshot, self.snapshot_at = message, time.monotonic()
            case Draining():
                self.draining = True
            case Goodbye():
                self.draining = True
                self._waiting.say_goodbye()
                self._on_goodbye()


def refusal(answer: Refused) -> SkyserveError:
    """The error that serve named; its classes are those of errors.py."""
    kind = getattr(errors, answer.error, None)
    if not (isinstance(kind, type) and issubclass(kind, SkyserveError)):
        kind = Unavailable
    return kind(answer.message, hint=answer.hint or None)
