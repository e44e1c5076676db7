"""One feed per log file that is read, however many streams read it.

Followers of the end of a log read each new piece once and share it, encoded once. Reads never wait for the disk on
the event loop: what the page cache does not hold is read in a thread.

Room: http process, event loop.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import TypeVar

from skyserve_exec.errors import DiskFull, SkyserveError, Unavailable
from skyserve_exec.server.file_watch import FileWatch
from skyserve_exec.server.log_chunk import Chunk
from skyserve_exec.server.turns import Turns

CHUNK_BYTES = 64 * 1024
GATHER_SECONDS = 0.02  # a writer's small pieces become one wake-up
MOST_SHARED = 4  # chunks kept for the followers that are a little behind
NO_WAIT: int = getattr(os, "RWF_NOWAIT", 0)
Wake = Callable[[], None]
Found = TypeVar("Found")


class LogFeed:
    """One open log. `users` streams read it; those in `wakes` want to know when it grows."""

    def __init__(self, path: Path, descriptor: int, disk: Executor, turns: Turns) -> None:
        self.path = path
        self.descriptor = descriptor
        self.users = 1
        self.wakes: list[Wake] = []
        self._disk = disk
        self._turns = turns
        self._without_waiting = NO_WAIT != 0
        self._one_at_a_time = asyncio.Lock()
        self._round = 0
        self._shared: dict[int, tuple[int, Chunk]] = {}
        self._gathering: asyncio.TimerHandle | None = None

    async def read(self, offset: int) -> Chunk:
        """What stands at `offset`, at most 64 KiB; empty at the end of what is written so far."""
        shared = self._get_shared(offset)
        if shared is not None:
            return shared
        data = self._read_cached(CHUNK_BYTES, offset)
        if data is None:
            async with self._one_at_a_time:
                shared = self._get_shared(offset)
                if shared is not None:
                    return shared
                data = await self._in_thread(os.pread, self.descriptor, CHUNK_BYTES, offset)
        chunk = Chunk(offset, data)
        self._share(chunk)
        return chunk

    async def read_block(self, offset: int, size: int) -> bytes:
        """Bytes that nobody else wants."""
        data = self._read_cached(size, offset)
        return data if data else await self._in_thread(os.pread, self.descriptor, size, offset)

    async def size(self) -> int:
        """Bytes written so far."""
        return (await self._in_thread(os.fstat, self.descriptor)).st_size

    def grown(self) -> None:
        """Something was written: wakes the followers a moment later."""
        if self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(GATHER_SECONDS, self._wake_all)

    def close(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
        os.close(self.descriptor)

    def _wake_all(self) -> None:
        self._gathering = None
        self._round += 1
        self._turns.add(self.wakes)

    def _read_cached(self, size: int, offset: int) -> bytes | None:
        """What the page cache holds; None: it has to be waited for."""
        if not self._without_waiting:
            return None
        buffer = bytearray(size)
        try:
            count = os.preadv(self.descriptor, [buffer], offset, NO_WAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL}:
                raise _unreadable(self.path, error) from None
            self._without_waiting = False
            return None
        return bytes(memoryview(buffer)[:count])

    async def _in_thread(self, call: Callable[..., Found], *arguments: int) -> Found:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._disk, call, *arguments)
        except OSError as error:
            raise _unreadable(self.path, error) from None

    def _get_shared(self, offset: int) -> Chunk | None:
        number, chunk = self._shared.get(offset, (0, None))
        if chunk is None or (number != self._round and len(chunk.data) < CHUNK_BYTES):
            return None  # a short one may have been continued since
        return chunk

    def _share(self, chunk: Chunk) -> None:
        if self.users > 1 and chunk.data:
            self._shared.pop(chunk.offset, None)
            while len(self._shared) >= MOST_SHARED:
                del self._shared[next(iter(self._shared))]
            self._shared[chunk.offset] = (self._round, chunk)


class LogFeeds:
    """All open logs of this process."""

    def __init__(self, disk: Executor) -> None:
        self._disk = disk
        self._watch = FileWatch(disk)
        self._turns = Turns()
        self._feeds: dict[Path, LogFeed] = {}

    def __len__(self) -> int:
        return len(self._feeds)

    def close(self) -> None:
        """Ends the watching, on the loop; the feeds are closed by those who use them."""
        self._watch.close()

    async def open(self, path: Path, *, create: bool) -> LogFeed:
        """The feed of a log; `leave` must follow. With `create` the file is made, empty, when it is not there yet.

        Raises:
            DiskFull, Unavailable: it cannot be opened.
        """
        if path not in self._feeds:
            opening = asyncio.get_running_loop().run_in_executor(self._disk, _open, path, create)
            try:
                descriptor = await opening
            except OSError as error:
                raise _unreadable(path, error) from None
            except asyncio.CancelledError:
                opening.add_done_callback(_close_result)
                raise
            if path not in self._feeds:
                self._feeds[path] = LogFeed(path, descriptor, self._disk, self._turns)
                return self._feeds[path]
            os.close(descriptor)  # somebody else was faster
        feed = self._feeds[path]
        feed.users += 1
        return feed

    def follow(self, feed: LogFeed, wake: Wake) -> None:
        """Calls `wake` whenever the log has grown."""
        if not feed.wakes:
            self._watch.add(feed.path, feed.descriptor, feed.grown)
        feed.wakes.append(wake)

    def leave(self, feed: LogFeed, wake: Wake) -> None:
        """Ends the use of a feed, and its following if it was followed."""
        if wake in feed.wakes:
            feed.wakes.remove(wake)
            if not feed.wakes:
                self._watch.remove(feed.descriptor)
        feed.users -= 1
        if not feed.users:
            del self._feeds[feed.path]
            feed.close()


def _open(path: Path, create: bool) -> int:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    if create:
        return os.open(path, flags | os.O_CREAT, 0o600)
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        return os.open(os.devnull, flags)  # it has printed nothing, or its log is gone


def _close_result(opening: asyncio.Future[int]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        os.close(opening.result())


def _unreadable(path: Path, error: OSError) -> SkyserveError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return DiskFull(f"the log {path.name} cannot be made: {error.strerror}")
    return Unavailable(
        f"the log {path.name} cannot be read: {error.strerror}", hint="Check the disk of the state directory."
    )
