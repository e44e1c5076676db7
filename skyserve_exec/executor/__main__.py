"""The spawner's front door: `python -m skyserve_exec.executor`, started by serve.

Room: spawner process. Single-threaded, or forking it would copy locks that other threads hold.
"""

from __future__ import annotations

import os

os.environ["SPT_NOENV"] = "1"  # setproctitle must not write over /proc/PID/environ: the run marker is read there

import gc
import logging
import signal
import socket
import sys

import setproctitle

from skyserve_exec import logsetup, settings
from skyserve_exec.errors import SkyserveError
from skyserve_exec.executor.loaded_operations import LoadedOperations, load
from skyserve_exec.executor.spawner import Spawner
from skyserve_exec.messages import SpawnerReady
from skyserve_exec.system import deathwatch, proctree
from skyserve_exec.system.channel import Channel, ChannelClosed
from skyserve_exec.system.signals import SignalBox

log = logging.getLogger(__name__)


def main() -> int:
    """Imports every operation once, then forks on demand until serve is gone."""
    environment = settings.child_environment()
    deathwatch.die_with_parent(environment.parent)  # while it imports, which may take long, it has no children
    deathwatch.adopt_orphans()
    setproctitle.setproctitle("sky: spawner")
    logsetup.configure_child(environment.settings)
    # A signal to the whole process group is serve's to act on: it steers the spawner through the channel.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    signals = SignalBox([signal.SIGCHLD])
    channel = Channel(socket.socket(fileno=environment.channel), takes_descriptors=True)
    try:
        operations = load(environment.settings.operation_modules)
        deathwatch.outlive_parent(environment.parent)
        _warn_of_threads()
        gc.collect()
        gc.freeze()  # what is imported now is shared with every executor: the collector shall not write to it
        channel.send(SpawnerReady(operations.describe_own()))
        Spawner(channel, signals, operations, environment.settings).run()
    except SkyserveError as error:
        channel.send(SpawnerReady([], failure=error.message))
        channel.flush_blocking()
        return 1
    except ChannelClosed:
        return 0  # serve was told to stop before the imports were done
    return 0


def _warn_of_threads() -> None:
    if proctree.thread_count() > 1:
        log.warning(
            "importing the operations left %d threads; forked executors may deadlock on locks these hold",
            proctree.thread_count() - 1,
        )


__all__ = ["LoadedOperations", "main"]

if __name__ == "__main__":
    sys.exit(main())
