"""The server's front door: `python -m skyserve_exec.serve`, root of every process.

    serve            this process; main thread = supervisor loop; pid 1 in a container
    ├─ http          uvicorn + FastAPI, 1..N processes on the one listening socket that serve holds open
    └─ spawner       has imported every operation once; forks, reaps and, if serve dies, ends all below
       ├─ executor long-0 … long-N      one more than run at once: a warm spare
       ├─ executor short-0 … short-M
       └─ tails      one per followed log; their output IS the request's log file

Boot order: settings, state directory, lock, port, token; then http (its imports take longest) and the spawner, which
import while the database is opened and the former life is settled; then the loop. The way down is the reverse.

Room: serve process, main thread.
"""

from __future__ import annotations

import os

os.environ["SPT_NOENV"] = "1"  # setproctitle must not write over /proc/PID/environ: the run marker is read there

import argparse
import json
import logging
import signal
import socket
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import setproctitle

from skyserve_exec import settings as settings_module
from skyserve_exec.errors import EXIT_OK, EXIT_USAGE, BadInput, Conflict, SkyserveError, StartFailed
from skyserve_exec.logsetup import ServerLog, open_for_children
from skyserve_exec.paths import StateDir
from skyserve_exec.pool import token_file
from skyserve_exec.pool.children import Surroundings
from skyserve_exec.pool.crew import Crew
from skyserve_exec.pool.ears import Ears
from skyserve_exec.pool.executors import ExecutorPool
from skyserve_exec.pool.http_children import HttpChildren
from skyserve_exec.pool.listener import listen
from skyserve_exec.pool.recovery import recover
from skyserve_exec.pool.sizing import PoolSizes, pool_sizes
from skyserve_exec.pool.supervisor import Supervisor
from skyserve_exec.settings import Settings
from skyserve_exec.states import ScheduleType
from skyserve_exec.store.requests import RequestStore
from skyserve_exec.system import deathwatch
from skyserve_exec.system.cgroup import read_limits
from skyserve_exec.system.endpoint import endpoint_of
from skyserve_exec.system.lockfile import Lock, LockHeld
from skyserve_exec.system.proctree import start_time_of
from skyserve_exec.system.signals import SignalBox
from skyserve_exec.version import __version__

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LOCK_SECONDS = 2.0  # a client that looks at the lock holds it for an instant

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the server until it is told to stop; the process's exit code."""
    options = vars(_parser().parse_args(argv))
    to_terminal = options.pop("log_to_terminal")
    try:
        return run(settings_module.load(options), to_terminal=to_terminal)
    except SkyserveError as error:
        print(f"Error: {error.message}" + (f"\nHint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return error.exit_code


def run(settings: Settings, *, to_terminal: bool) -> int:
    """Boots, loops, and leaves nothing behind.

    Raises:
        SkyserveError: it could not start; nothing is left running.
    """
    os.umask(0o077)
    state_dir = StateDir(settings.state_path)
    state_dir.make()
    lock = _take_lock(state_dir)
    try:
        with listen(settings) as listener:
            return _serve(settings, state_dir, listener, to_terminal=to_terminal)
    finally:
        lock.release()


def _serve(settings: Settings, state_dir: StateDir, listener: socket.socket, *, to_terminal: bool) -> int:
    signals = SignalBox([*STOP_SIGNALS, signal.SIGCHLD])
    setproctitle.setproctitle("sky: serve")
    deathwatch.adopt_orphans()
    server_log = ServerLog(settings, to_terminal=to_terminal)
    boot_id = uuid.uuid4().hex
    token = token_file.read_or_make(state_dir.token) if settings.token else None
    sizes = pool_sizes(settings, read_limits())
    log_descriptor = None if to_terminal else open_for_children(state_dir.server_log)
    around = Surroundings(settings, boot_id, log_descriptor, listener)
    https = HttpChildren(around, settings.http_processes)
    crew = Crew(around, _pools(sizes))
    https.start(time.monotonic())
    crew.start_spawner(time.monotonic())
    store: RequestStore | None = None
    try:
        store = RequestStore.open(state_dir.database)
        _settle_former_life(store, state_dir, settings)
        _announce(settings, state_dir, listener, boot_id, sizes)
        supervisor = Supervisor(
            settings, boot_id, token, store, https, crew, Ears(signals), server_log, time.monotonic, time.time
        )
        code = supervisor.run()
        for signum in STOP_SIGNALS:
            signal.signal(signum, signal.SIG_IGN)  # the interpreter's own end would let a late one kill it
    except BaseException:
        _end_children(https, crew)
        raise
    finally:
        if store is not None:
            store.close()
        if log_descriptor is not None:
            os.close(log_descriptor)
        _withdraw(state_dir, boot_id)
    if supervisor.failure:
        if code == EXIT_USAGE:
            raise BadInput(supervisor.failure, hint="Mend the module or leave it out of --operations.")
        raise StartFailed(supervisor.failure, hint="Mend that and start again.")
    log.info("stopped after %s; every process has ended", supervisor.desk.summary())
    return code


def _settle_former_life(store: RequestStore, state_dir: StateDir, settings: Settings) -> None:
    found = recover(store, state_dir.server_json, settings.max_attempts, time.time())
    if any((found.ended_processes, found.again, found.failed)):
        log.warning(
            "recovered from an unclean end: %d leftover processes ended, %d requests run again, %d settled",
            found.ended_processes,
            found.again,
            found.failed,
        )


def _announce(settings: Settings, state_dir: StateDir, listener: socket.socket, boot_id: str, sizes: PoolSizes) -> None:
    endpoint = endpoint_of(listener)
    log.info(
        "skyserve-exec %s, pid %d, listening on %s, state in %s", __version__, os.getpid(), endpoint, state_dir.root
    )
    log.info("executors: %d long, %d short (%s)", sizes.long, sizes.short, sizes.why)
    body = {
        "pid": os.getpid(),
        "start_time": start_time_of(os.getpid()),
        "boot_id": boot_id,
        "endpoint": endpoint,
        "version": __version__,
        "started_at": time.time(),
        "long_executors": sizes.long,
        "short_executors": sizes.short,
        "settings": settings.to_json(),
    }
    new = state_dir.server_json.with_suffix(".new")
    new.write_text(json.dumps(body, indent=1))
    new.replace(state_dir.server_json)


def _withdraw(state_dir: StateDir, boot_id: str) -> None:
    """Removes what this life announced; what a former one left stays until recovery has used it."""
    with suppress(OSError, ValueError):
        if json.loads(state_dir.server_json.read_text()).get("boot_id") == boot_id:
            state_dir.server_json.unlink()


def _take_lock(state_dir: StateDir) -> Lock:
    lock = Lock(state_dir.lock)
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            lock.take()
            return lock
        except LockHeld:
            if time.monotonic() > deadline:
                raise Conflict(
                    f"state_dir: {state_dir.root} is in use by {_holder(state_dir)}",
                    hint="Stop that one with 'sky api stop', or choose another --state-dir.",
                ) from None
            time.sleep(0.05)


def _holder(state_dir: StateDir) -> str:
    with suppress(OSError, ValueError):
        body: dict[str, Any] = json.loads(state_dir.server_json.read_text())
        return f"the server with pid {body.get('pid')} at {body.get('endpoint')}"
    return "another process"


def _pools(sizes: PoolSizes) -> dict[ScheduleType, ExecutorPool]:
    # A long executor serves one request: its successor waits warm. Short ones are reused.
    return {
        ScheduleType.LONG: ExecutorPool(ScheduleType.LONG, sizes.long, spares=1),
        ScheduleType.SHORT: ExecutorPool(ScheduleType.SHORT, sizes.short, spares=0),
    }


def _end_children(https: HttpChildren, crew: Crew) -> None:
    """A boot that fails takes its children along."""
    for child in [seat.child for seat in https.living()] + [crew.spawner]:
        if child is not None:
            child.process.kill()
            child.process.wait()
            child.channel.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m skyserve_exec.serve", description=__doc__.partition("\n")[0])
    for row in settings_module.TABLE:
        parser.add_argument(row.option, dest=row.name, default=None, help=f"{row.help} [{row.env}]")
    parser.add_argument("--log-to-terminal", action="store_true", help="Log to the terminal, not to server.log.")
    return parser


if __name__ == "__main__":
    sys.exit(main() or EXIT_OK)
