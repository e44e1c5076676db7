"""Tells which of the watched files have grown: one inotify instance for all, or one look at all sizes in turn.

Room: http process, event loop; sizes are looked up in a thread, since a disk may not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path

import inotify_simple

log = logging.getLogger(__name__)

POLL_SECONDS = 0.1  # for files without inotify
LOOK_AGAIN_SECONDS = 2.0  # for the others: an event may be lost, or the file system may not send any
Grown = Callable[[], None]


class FileWatch:
    """Watches files by path, while somebody wants to know."""

    def __init__(self, disk: Executor) -> None:
        self._disk = disk
        self._notify: inotify_simple.INotify | None = None
        self._tried = False
        self._by_watch: dict[int, Grown] = {}
        self._sizes: dict[int, tuple[int, Grown]] = {}  # by descriptor
        self._watch_of: dict[int, int] = {}
        self._poll: asyncio.Task[None] | None = None

    def add(self, path: Path, descriptor: int, grown: Grown) -> None:
        """Calls `grown` whenever more is written to the file, from now on."""
        self._start()
        self._sizes[descriptor] = (-1, grown)
        if self._notify is not None:
            try:
                watch = self._notify.add_watch(path, inotify_simple.flags.MODIFY)
            except OSError as error:
                log.info("%s is polled, since it cannot be watched: %s", path.name, error)
            else:
                self._by_watch[watch] = grown
                self._watch_of[descriptor] = watch
        if self._poll is not None and descriptor not in self._watch_of:
            self._poll.cancel()  # it may be in its long sleep
            self._poll = None
        if self._poll is None:
            self._poll = asyncio.get_running_loop().create_task(self._look())

    def remove(self, descriptor: int) -> None:
        self._sizes.pop(descriptor, None)
        watch = self._watch_of.pop(descriptor, None)
        if watch is not None and self._notify is not None:
            self._by_watch.pop(watch, None)
            with contextlib.suppress(OSError):  # the kernel drops the watch of a deleted file by itself
                self._notify.rm_watch(watch)
        if not self._sizes and self._poll is not None:
            self._poll.cancel()
            self._poll = None

    def close(self) -> None:
        """Gives the inotify instance back."""
        if self._notify is not None:
            asyncio.get_running_loop().remove_reader(self._notify.fileno())
            self._notify.close()
            self._notify = None

    def _start(self) -> None:
        if self._tried:
            return
        self._tried = True
        try:
            self._notify = inotify_simple.INotify(nonblocking=True)
        except (OSError, AttributeError) as error:
            log.warning("logs are polled, since inotify cannot be used: %s", error)
        else:
            asyncio.get_running_loop().add_reader(self._notify.fileno(), self._read_events)

    def _read_events(self) -> None:
        assert self._notify is not None
        for event in self._notify.read(timeout=0):
            if event.mask & inotify_simple.flags.Q_OVERFLOW:
                for _, grown in list(self._sizes.values()):
                    grown()
            elif event.mask & inotify_simple.flags.IGNORED:
                self._forget(event.wd)
            elif event.wd in self._by_watch:
                self._by_watch[event.wd]()

    def _forget(self, watch: int) -> None:
        self._by_watch.pop(watch, None)
        for descriptor, each in list(self._watch_of.items()):
            if each == watch:
                del self._watch_of[descriptor]

    async def _look(self) -> None:
        """One task for all files: those without a watch often, the others now and then."""
        loop = asyncio.get_running_loop()
        looked = loop.time()
        while True:
            unwatched = self._sizes.keys() - self._watch_of.keys()
            await asyncio.sleep(POLL_SECONDS if unwatched else LOOK_AGAIN_SECONDS)
            due = list(unwatched)
            if loop.time() - looked >= LOOK_AGAIN_SECONDS:
                due, looked = list(self._sizes), loop.time()
            for descriptor, size in (await loop.run_in_executor(self._disk, _sizes_of, due)).items():
                before, grown = self._sizes.get(descriptor, (size, None))
                if grown is not None and size != before:
                    self._sizes[descriptor] = (size, grown)
                    grown()


def _sizes_of(descriptors: list[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # closed meanwhile
            found[descriptor] = os.fstat(descriptor).st_size
    return found
