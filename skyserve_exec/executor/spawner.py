"""The spawner's loop: forks executors and tails, reaps them, and ends every process below it when serve is gone.

It is the parent of all executors and tails and a child subreaper, so each orphan of theirs becomes its child: a child
that it does not know and that is not a detached job is a leftover, and is killed. It alone signals its children, since
a pid cannot be reused before its parent has reaped it.

Room: spawner process, one thread. Blocks only in select.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import signal
import socket
import traceback
from dataclasses import dataclass

from skyserve_exec.executor import child_start
from skyserve_exec.executor.loaded_operations import LoadedOperations
from skyserve_exec.executor.request_loop import serve_requests
from skyserve_exec.messages import Exited, KillChild, Message, SignalChild, Spawned, SpawnExecutor, SpawnTail
from skyserve_exec.settings import Settings
from skyserve_exec.system import proctree
from skyserve_exec.system.channel import Channel, ChannelClosed
from skyserve_exec.system.signals import SignalBox

SWEEP_SECONDS = 0.02  # between two looks at a tree that is being killed

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Child:
    """An executor or a tail; both lead their own session."""

    child_id: int
    pid: int
    is_tail: bool


class Spawner:
    """Owns every process below it. `run` returns when serve is gone and nothing is left."""

    def __init__(self, channel: Channel, signals: SignalBox, operations: LoadedOperations, settings: Settings) -> None:
        self._channel = channel
        self._signals = signals
        self._operations = operations
        self._settings = settings
        self._children: dict[int, Child] = {}  # by child id
        self._sweeping = False

    def run(self) -> None:
        try:
            while True:
                self._wait()
                self._reap()
                self._obey()
        except ChannelClosed:
            self._end_all()

    def _wait(self) -> None:
        writers = [self._channel] if self._channel.wants_write else []
        timeout = SWEEP_SECONDS if self._sweeping else None
        readers: list[Channel | SignalBox] = [self._channel, self._signals]
        select.select(readers, writers, [], timeout)
        if self._channel.wants_write:
            self._channel.flush()

    def _obey(self) -> None:
        for message in self._channel.receive():
            match message:
                case SpawnExecutor(child_id, slot):
                    self._spawn_executor(child_id, slot, self._channel.descriptors.popleft())
                case SpawnTail():
                    self._spawn_tail(message)
                case SignalChild(child_id, signum):
                    self._signal(child_id, signum)
                case KillChild(child_id):
                    self._signal(child_id, signal.SIGKILL)
                case _:
                    log.error("unexpected message %s", type(message).__name__)

    def _spawn_executor(self, child_id: int, slot: str, descriptor: int) -> None:
        parent = os.getpid()
        pid = self._fork(child_id)
        if pid == 0:
            self._be_executor(slot, descriptor, parent)
        os.close(descriptor)
        self._remember(child_id, pid, is_tail=False)

    def _be_executor(self, slot: str, descriptor: int, parent: int) -> None:
        """Never returns: the forked child must not come back into the spawner's loop."""
        code = 1
        try:
            child_start.become_executor(slot, parent, descriptor)
            gc.freeze()
            channel = Channel(socket.socket(fileno=descriptor))
            code = serve_requests(channel, slot, self._operations, self._settings)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _spawn_tail(self, order: SpawnTail) -> None:
        parent = os.getpid()
        pid = self._fork(order.tail_id)
        if pid == 0:
            child_start.become_tail(order, parent)
        self._remember(order.tail_id, pid, is_tail=True)

    def _fork(self, child_id: int) -> int | None:
        """None when the system allows no more processes: the child then counts as ended."""
        try:
            return os.fork()
        except OSError as error:
            log.error("cannot fork: %s", error)
            self._send(Exited(child_id, 0, 1, 0, error=f"cannot fork: {error.strerror}"))
            return None

    def _remember(self, child_id: int, pid: int | None, *, is_tail: bool) -> None:
        if pid is not None:
            self._children[child_id] = Child(child_id, pid, is_tail)
            self._send(Spawned(child_id, pid))

    def _signal(self, child_id: int, signum: int) -> None:
        child = self._children.get(child_id)
        if child is None:
            return
        if child.is_tail and _leads_its_group(child.pid):
            os.killpg(child.pid, signum)
        else:
            proctree.signal_pid(child.pid, signum)

    def _reap(self) -> None:
        self._signals.take()
        by_pid = {child.pid: child for child in self._children.values()}
        for pid, status, peak_rss in _ended_children():
            child = by_pid.get(pid)
            if child is None:
                continue
            del self._children[child.child_id]
            self._sweeping = True
            self._send(Exited(child.child_id, pid, status, peak_rss))
        if self._sweeping:
            known = {child.pid for child in self._children.values()}
            self._sweeping = proctree.kill_orphans(known) > 0

    def _send(self, message: Message) -> None:
        self._channel.send(message)

    def _end_all(self) -> None:
        """Serve is gone: kills executors, tails, and their orphans generation by generation, until none is left."""
        while True:
            for child in list(self._children.values()):
                self._signal(child.child_id, signal.SIGKILL)
            _ended_children()
            # Asked of the kernel: the loop may have reaped some whose end could not be reported any more.
            left = set(proctree.children_of(os.getpid()))
            self._children = {key: child for key, child in self._children.items() if child.pid in left}
            if proctree.kill_orphans(set()) == 0 and not self._children:
                return
            select.select([self._signals], [], [], SWEEP_SECONDS)
            self._signals.take()


def _ended_children() -> list[tuple[int, int, int]]:
    """Reaps what has ended: (pid, exit code or minus signal, peak resident bytes), see wait4(2)."""
    ended: list[tuple[int, int, int]] = []
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024))


def _leads_its_group(pid: int) -> bool:
    # Between fork and setsid the child is still in the spawner's own group.
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False
