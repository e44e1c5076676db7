"""Starts and stops the server of a state directory. The kernel lock says whether one runs; server.json says which.

Room: the command line. The only part of the client that starts or signals a process, and only of the one it has
identified: by pid and start time, while its lock is held. Never by a command line.
"""

from __future__ import annotations

import dataclasses
import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from skyserve_exec import errors, settings
from skyserve_exec.client.endpoint import read_server_json, state_option
from skyserve_exec.errors import Conflict, StartFailed
from skyserve_exec.paths import StateDir
from skyserve_exec.system.lockfile import is_held
from skyserve_exec.system.proctree import Identity

POLL_SECONDS = 0.01
SHORTEST_PROBE, LONGEST_PROBE = 0.5, 5.0
LAST_LINES = 12
MOST_CONSOLE = 256 * 1024
ROUNDS = 100  # of losing the race against others who start and stop the same server all the time
BOOT_CODES = {errors.EXIT_USAGE, errors.EXIT_REFUSED, errors.EXIT_CONFLICT, errors.EXIT_UNAUTHORIZED}
Told = Callable[[str, float], None]  # what is awaited, and for how many seconds already


@dataclass(frozen=True, slots=True)
class Running:
    """A server and what its probe `says`. `fresh`: it was started just now."""

    endpoint: str
    pid: int
    says: str = ""
    fresh: bool = False

    @property
    def is_ready(self) -> bool:
        return self.says == "ready"


@dataclass(frozen=True, slots=True)
class Stopped:
    """How a stop ended. `pid` is None when no server ran."""

    pid: int | None
    seconds: float
    gone: bool


def arguments_of(options: Mapping[str, Any]) -> list[str]:
    """The command line of serve for these settings."""
    words: list[str] = []
    for row in settings.TABLE:
        value = options.get(row.name)
        if value is not None:
            words += [row.option, str(value).lower() if isinstance(value, bool) else str(value)]
    return [sys.executable, "-P", "-m", "skyserve_exec.serve", *words]


def start(options: Mapping[str, Any], told: Told) -> Running:
    """Starts a server, or finds the one that runs with these options. Waits for it as long as its process lives.

    Raises:
        BadInput: an option cannot be used; nothing was started.
        Conflict: a server with other options runs.
        StartFailed: it ended before it was healthy.
    """
    wanted = settings.load(options)
    state = StateDir(wanted.state_path)
    state.make()
    for _ in range(ROUNDS):
        running = _join(state, told) if is_held(state.lock) else _spawn(options, state, told)
        if running is not None:
            if not running.fresh:
                _check_same(options, wanted, state, running)
            return running
    raise Conflict(
        f"state_dir: {state.root} is started and stopped by others all the time", hint="Try again when they are done."
    )


def stop(state: StateDir, timeout: float, told: Told) -> Stopped:
    """Sends the server one SIGTERM and waits until its process is gone.

    A server that is still booting is waited for until it says who it is. `gone` is False when it did not end in time.
    """
    begun = time.monotonic()
    victim: Identity | None = None
    while is_held(state.lock):
        victim = _holder(state)
        if victim is not None and _terminate(victim, state):
            break
        victim = None
        if time.monotonic() - begun > timeout:
            return Stopped(None, timeout, gone=False)
        told("Waiting for the server to say who it is", time.monotonic() - begun)
        time.sleep(POLL_SECONDS)
    if victim is None:
        return Stopped(None, time.monotonic() - begun, gone=True)
    while victim.is_alive or _still_holds(victim, state):
        if time.monotonic() - begun > timeout:
            return Stopped(victim.pid, time.monotonic() - begun, gone=False)
        told("Stopping the server", time.monotonic() - begun)
        time.sleep(POLL_SECONDS)
    return Stopped(victim.pid, time.monotonic() - begun, gone=True)


# --- start: a child of ours -----------------------------------------------------------------------------------------


def _spawn(options: Mapping[str, Any], state: StateDir, told: Told) -> Running | None:
    """Starts one and waits until it is ready. None: somebody else was quicker."""
    begun, log_size, console_size = time.monotonic(), _size(state.server_log), _size(state.server_console)
    with _open_console(state.server_console) as output:
        child = subprocess.Popen(
            arguments_of(options), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        while child.poll() is None:
            running = _look(state, child.pid, begun)
            if running.is_ready:
                child.returncode = 0  # it outlives this process, which must not complain about that
                return dataclasses.replace(running, fresh=True)
            told(_awaited("Starting the server", running), time.monotonic() - begun)
            time.sleep(POLL_SECONDS)
        if is_held(state.lock):
            return None
    console, log = _since(state.server_console, console_size), _since(state.server_log, log_size)
    raise _start_failed(child.returncode, _lines(console), _lines(log), state)


def _open_console(path: Path) -> BinaryIO:
    """A file with a name: the server keeps it as its stdout and stderr for life. Others may be writing to it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    if os.fstat(descriptor).st_size > MOST_CONSOLE:
        os.ftruncate(descriptor, 0)
    return os.fdopen(descriptor, "wb")


def _look(state: StateDir, pid: int, begun: float) -> Running:
    """The server of server.json, which must have this pid, and what its probe says."""
    information = read_server_json(state)
    if information.get("pid") != pid:
        return Running("", pid)
    endpoint = str(information.get("endpoint"))
    # The socket listens before anybody answers: short looks keep the progress moving, and on a machine so busy that
    # they are too short for an answer they grow.
    patience = min(LONGEST_PROBE, max(SHORTEST_PROBE, (time.monotonic() - begun) / 4))
    return Running(endpoint, pid, _probe(endpoint, patience))


def _awaited(what: str, running: Running) -> str:
    return f"{what} ({running.says})" if running.says else what


def _probe(endpoint: str, seconds: float) -> str:
    """What /readyz says in one line; empty when nobody answers."""
    parts = urlsplit(endpoint)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=seconds)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        return answer.read(200).decode(errors="replace").strip() if answer.status in {200, 503} else ""
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()


def _start_failed(code: int, console: list[str], log: list[str], state: StateDir) -> StartFailed:
    if code == 0:
        return StartFailed("the server was stopped by somebody else while it was starting", hint="Start it again.")
    how = f"signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"exit code {code}"
    message, hint = _prefixed(console, "Error: "), _prefixed(console, "Hint: ")
    last = (console or log or [""])[-1].strip()
    said = f": {message or last}" if message or last else ""
    error = StartFailed(
        f"the server ended with {how} before it was healthy{said}", hint=hint or f"Its log: {state.server_log}"
    )
    # Where the server has said what is wrong in words, its last lines add nothing.
    error.last_lines = [] if message else [*log, *console][-LAST_LINES:]
    if code in BOOT_CODES:
        error.exit_code = code
    return error


def _prefixed(lines: list[str], prefix: str) -> str:
    return next((line.removeprefix(prefix) for line in reversed(lines) if line.startswith(prefix)), "")


def _since(log: Path, size: int) -> bytes:
    """What came into the file since it had this size; all of it when it was rotated meanwhile."""
    try:
        with log.open("rb") as file:
            file.seek(size if size <= os.fstat(file.fileno()).st_size else 0)
            return file.read()
    except OSError:
        return b""  # it did not come so far as to have one


def _lines(data: bytes) -> list[str]:
    return [line for line in data.decode(errors="replace").splitlines() if line.strip()]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


# --- start: a server that runs already ------------------------------------------------------------------------------


def _join(state: StateDir, told: Told) -> Running | None:
    """Waits until the server that holds the lock is ready. None: it has ended, so another may be started."""
    begun = time.monotonic()
    while is_held(state.lock):
        holder = _holder(state)
        running = Running("", 0) if holder is None else _look(state, holder.pid, begun)
        if running.is_ready:
            return running
        told(_awaited("Waiting for the server that is starting or stopping", running), time.monotonic() - begun)
        time.sleep(POLL_SECONDS)
    return None


def _check_same(options: Mapping[str, Any], wanted: settings.Settings, state: StateDir, running: Running) -> None:
    information = read_server_json(state)
    sizes = {name: information[name] for name in ("long_executors", "short_executors") if name in information}
    runs_with = {**(information.get("settings") or {}), **sizes, "port": urlsplit(running.endpoint).port}
    asked = wanted.to_json()
    differing = [
        f"{name} is {_shown(runs_with[name])}, not {_shown(asked[name])}"
        for name in settings.told_names(options)
        if name in runs_with and not _is_same(name, asked[name], runs_with[name])
    ]
    if differing:
        raise Conflict(
            f"a server with other options runs already at {running.endpoint} (pid {running.pid}): "
            + "; ".join(differing),
            hint=f"Stop it first with: sky api stop{state_option(state)}",
        )


def _shown(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value) or "empty"


def _is_same(name: str, asked: Any, has: Any) -> bool:
    # 0 means "choose for me", which whatever runs has done.
    from_machine = name == "port" or name.endswith("_executors")
    return bool(asked == has or name == "state_dir" or (from_machine and asked == 0))


# --- stop -----------------------------------------------------------------------------------------------------------


def _holder(state: StateDir) -> Identity | None:
    """The server that server.json names, if that very process still lives."""
    information = read_server_json(state)
    try:
        identity = Identity(int(information["pid"]), int(information["start_time"]))
    except (KeyError, TypeError, ValueError):
        return None
    return identity if identity.is_alive else None


def _terminate(victim: Identity, state: StateDir) -> bool:
    """Signals exactly this process; False when it is not there any more, or not the holder of the lock."""
    try:
        # The descriptor pins the process: if the pid is reused from here on, the signal goes nowhere.
        descriptor = os.pidfd_open(victim.pid)
    except OSError:
        return False
    try:
        if not victim.is_alive or not is_held(state.lock):
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def _still_holds(victim: Identity, state: StateDir) -> bool:
    """Whether the lock is still held on behalf of the dead process, and not by a server started since."""
    return is_held(state.lock) and read_server_json(state).get("pid") == victim.pid
