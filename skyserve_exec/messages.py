"""What the processes of one server say to each other, as typed messages.

      http ──Submit, Cancel──────────────────────────────▶ serve
      http ◀─Welcome, Accepted, Refused, CancelDone, Started, Settled, Snapshot, Draining── serve
     serve ──SpawnExecutor, SignalExecutor, KillExecutor, SpawnTail, SignalTail── ▶ spawner
     serve ◀─SpawnerReady, Spawned, Exited────────────────────────────────────── spawner
     serve ──Run, Interrupt, Leave───────────────────────▶ executor
     serve ◀─Finished, HandOff─────────────────────────── executor

One message is a frame of 4 bytes length (big endian) and UTF-8 JSON with its class name under "kind". Payloads and
results travel as JSON *text* inside it: serve does not parse what users send, and what they return only to push it.

Room: every process. No I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Message:
    """Base of all messages; a message is a plain value."""


# --- http <-> serve -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Submit(Message):
    """A new request. `ticket` is http's own number for the answer; `payload` is JSON text."""

    ticket: int
    request_id: str
    name: str
    payload: str
    schedule_type: str
    user: str
    cluster: str | None = None
    lock_key: str | None = None
    restartable: bool = False
    deadline: float | None = None
    idempotency_key: str | None = None
    fingerprint: str | None = None
    created_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Cancel(Message):
    """Cancel these ids, or everything active (`everything`), or all that concerns one cluster; limited to `user`."""

    ticket: int
    request_ids: list[str] = field(default_factory=list)
    everything: bool = False
    cluster: str | None = None
    user: str | None = None
    force: bool = False
    by: str = ""


@dataclass(frozen=True, slots=True)
class Welcome(Message):
    """First message to an http process: the settings and the own operations' descriptions (see operation_table)."""

    boot_id: str
    token: str | None
    settings: dict[str, Any]
    own_operations: list[dict[str, Any]]
    started_at: float = 0.0  # of serve, wall clock


@dataclass(frozen=True, slots=True)
class Accepted(Message):
    """The row is committed. `request_id` is the older request's when the idempotency key was seen before."""

    ticket: int
    request_id: str
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Refused(Message):
    """Not done, and nothing was written. `error` is the class name in errors.py."""

    ticket: int
    error: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class CancelDone(Message):
    """Per request id what the cancel did: 'cancelled', 'cancelling' or 'already SUCCEEDED' and the like."""

    ticket: int
    outcomes: dict[str, str]


@dataclass(frozen=True, slots=True)
class Started(Message):
    """A hint: these requests run now."""

    request_ids: list[str]


@dataclass(frozen=True, slots=True)
class Settled(Message):
    """These requests are terminal, and committed. A record over 64 KiB comes as None: read the row."""

    records: dict[str, dict[str, Any] | None]


@dataclass(frozen=True, slots=True)
class Snapshot(Message):
    """How serve is doing; sent on change (at most 10 a second) and at least once a second, so it is a heartbeat too."""

    at: float
    draining: bool
    pools: dict[str, dict[str, Any]]  # long|short -> size, busy, idle, starting, lost, replaced, running: [ids]
    pending: dict[str, int]  # long|short -> requests waiting, as far as serve knows
    tails: int
    counters: dict[str, int]  # since this life's start: accepted, succeeded, failed, cancelled, ...
    problem: str = ""  # why no executor can take work, or the database cannot be written


@dataclass(frozen=True, slots=True)
class Draining(Message):
    """The server stops; `seconds` is the most it may still take."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Goodbye(Message):
    """Everything is settled; finish the open streams and end."""


# --- serve <-> spawner ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpawnExecutor(Message):
    """Fork one executor; its end of the socket pair comes with this message as a descriptor."""

    executor_id: int
    slot: str


@dataclass(frozen=True, slots=True)
class SignalChild(Message):
    """Send a signal to one executor or tail, if it still lives."""

    child_id: int
    signum: int


@dataclass(frozen=True, slots=True)
class KillChild(Message):
    """End one executor or tail and its whole process tree now."""

    child_id: int


@dataclass(frozen=True, slots=True)
class SpawnTail(Message):
    """Start a tail session whose stdout and stderr are the request's log file (opened for append)."""

    tail_id: int
    argv: list[str]
    env: dict[str, str]
    cwd: str
    log_path: str


@dataclass(frozen=True, slots=True)
class SpawnerReady(Message):
    """Every operation is imported. `failure` is set when one could not be; the spawner then ends."""

    own_operations: list[dict[str, Any]]
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Spawned(Message):
    """The child exists."""

    child_id: int
    pid: int


@dataclass(frozen=True, slots=True)
class Exited(Message):
    """The child is reaped. `status` is as from wait4(2): exit code >= 0, or minus the signal number."""

    child_id: int
    pid: int
    status: int
    peak_rss: int  # bytes
    error: str = ""  # set when it could not even be started


# --- serve <-> executor ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run(Message):
    """Run one request. `resume` is the operation's own state when a tail it handed off has ended."""

    request_id: str
    name: str
    payload: str
    attempt: int
    log_path: str
    user: str
    resume: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Interrupt(Message):
    """Precedes the SIGTERM that interrupts exactly this request."""

    request_id: str
    cause: str


@dataclass(frozen=True, slots=True)
class Leave(Message):
    """An idle executor shall end."""


@dataclass(frozen=True, slots=True)
class Finished(Message):
    """The request's end. `result` is JSON text, `error` the error object of the record."""

    request_id: str
    outcome: str
    result: str | None
    error: dict[str, Any] | None
    exit_code: int | None
    reusable: bool
    why_not_reusable: str = ""


@dataclass(frozen=True, slots=True)
class HandOff(Message):
    """The request goes on as a tail session; when that ends the operation is run again with `resume`."""

    request_id: str
    argv: list[str]
    env: dict[str, str]
    cwd: str
    resume: dict[str, Any]
    reason: str
    reusable: bool
    why_not_reusable: str = ""


KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in Message.__subclasses__()}
KIND_FIRST = {kind: f'{{"kind":"{kind.__name__}"'.encode() for kind in KINDS.values()}


def encode(message: Message) -> bytes:
    """The message as JSON, without the length."""
    fields = orjson.dumps(message)[1:]
    return KIND_FIRST[type(message)] + (b"," if len(fields) > 1 else b"") + fields


def decode(data: bytes | memoryview) -> Message:
    """The message in one frame; both ends are the same release, so a wrong one is a bug and raises."""
    body = orjson.loads(data)
    return KINDS[body.pop("kind")](**body)
