"""Starts and stops the server of a state directory. The kernel lock says whether one runs; server.json says which.

Room: the command line. The only part of the client that starts or signals a process, and only of the one it has
identified: by pid and start time, while its lock is held. Never by a command line.
"""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from skyserve_exec import errors, settings
from skyserve_exec.client.endpoint import read_server_json
from skyserve_exec.errors import Conflict, StartFailed
from skyserve_exec.paths import StateDir
from skyserve_exec.system.lockfile import is_held
from skyserve_exec.system.proctree import Identity

POLL_SECONDS = 0.01
PROBE_SECONDS = 5.0
LAST_LINES = 12
ROUNDS = 100  # of losing the race against others who start and stop the same server all the time
BOOT_CODES = {errors.EXIT_USAGE, errors.EXIT_REFUSED, errors.EXIT_CONFLICT, errors.EXIT_UNAUTHORIZED}
Told = Callable[[str, float], None]  # what is awaited, and for how many seconds already


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers. `fresh`: it was started just now."""

    endpoint: str
    pid: int
    fresh: bool
    version: str


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
    begun, log_size = time.monotonic(), _size(state.server_log)
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            arguments_of(options), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        while child.poll() is None:
            running = _answering(state, child.pid)
            if running is not None:
                child.returncode = 0  # it outlives this process, which must not complain about that
                return Running(running.endpoint, running.pid, True, running.version)
            told("Starting the server", time.monotonic() - begun)
            time.sleep(POLL_SECONDS)
        if is_held(state.lock):
            return None
        raise _start_failed(child.returncode, _last_lines(output, state.server_log, log_size), state)


def _answering(state: StateDir, pid: int) -> Running | None:
    """The server of server.json (which must have this pid) once it takes requests."""
    information = read_server_json(state)
    if information.get("pid") != pid:
        return None
    endpoint = str(information.get("endpoint"))
    if _probe(endpoint) != "ready":
        return None
    return Running(endpoint, pid, False, str(information.get("version")))


def _probe(endpoint: str) -> str:
    """What /readyz says in one word; empty when nobody answers."""
    parts = urlsplit(endpoint)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PROBE_SECONDS)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        return answer.read(200).decode(errors="replace").strip() if answer.status in {200, 503} else ""
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()


def _start_failed(code: int, lines: list[str], state: StateDir) -> StartFailed:
    how = f"signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"exit code {code}"
    said = f": {_sentence(lines[-1])}" if lines else ""
    error = StartFailed(f"the server ended with {how} before it was healthy{said}", hint=f"Its log: {state.server_log}")
    error.last_lines = lines
    if code in BOOT_CODES:
        error.exit_code = code
    return error


def _sentence(line: str) -> str:
    return line.strip().removeprefix("Error: ").removeprefix("error: ")


def _last_lines(output: IO[bytes], log: Path, log_size: int) -> list[str]:
    output.seek(0)
    text = output.read().decode(errors="replace")
    try:
        with log.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(log_size if log_size <= size else 0)
            text = file.read().decode(errors="replace") + text
    except OSError:
        pass  # it did not come so far as to have a log
    return [line for line in text.splitlines() if line.strip()][-LAST_LINES:]


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
        running = None if holder is None else _answering(state, holder.pid)
        if running is not None:
            return running
        told("Waiting for the server that is starting or stopping", time.monotonic() - begun)
        time.sleep(POLL_SECONDS)
    return None


def _check_same(options: Mapping[str, Any], wanted: settings.Settings, state: StateDir, running: Running) -> None:
    runs_with = read_server_json(state).get("settings") or {}
    asked = wanted.to_json()
    differing = [
        f"{name} is {runs_with[name]}, not {asked[name]}"
        for name in settings.told_names(options)
        if name in runs_with and not _is_same(name, asked[name], runs_with[name])
    ]
    if differing:
        raise Conflict(
            f"a server with other options runs already at {running.endpoint} (pid {running.pid}): "
            + "; ".join(differing),
            hint="Stop it first with: sky api stop",
        )


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
