"""Every setting of the server, once: CLI options, environment, docs/settings.md and `load` are made from this table.

Room: every process. The only module that reads the environment for configuration.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from skyserve_exec.errors import BadInput

KIB, MIB = 1024, 1024 * 1024
YES, NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table. `low` and `high` bound numbers; 0 in a pool size means 'from the machine'."""

    name: str
    default: Any
    help: str
    low: float | None = None
    high: float | None = None
    variable: str = ""  # where SKYSERVE_NAME already means something else

    @property
    def type(self) -> type:
        return type(self.default)

    @property
    def env(self) -> str:
        return self.variable or f"SKYSERVE_{self.name.upper()}"

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")


TABLE: tuple[Setting, ...] = (
    Setting("state_dir", "~/.sky/api_server", "Directory of the server's database, logs, lock and token."),
    Setting("host", "127.0.0.1", "Address to listen on. Beyond loopback a token is required."),
    Setting("port", 46580, "Port to listen on; 0 takes a free one.", 0, 65535),
    Setting("http_processes", 1, "HTTP processes on the one listening socket.", 1, 64),
    Setting("long_executors", 0, "Long requests that run at once; 0 sizes it from CPUs and memory.", 0, 512),
    Setting("short_executors", 0, "Short requests that run at once; 0 sizes it from CPUs and memory.", 0, 512),
    Setting("operations", "", "Modules with own operations, separated by commas; imported by the spawner."),
    Setting(
        "token",
        True,
        "Require the token of the state directory; may be switched off on loopback only.",
        variable="SKYSERVE_REQUIRE_TOKEN",  # SKYSERVE_TOKEN holds a client's token
    ),
    Setting("allowed_hosts", "", "More names to accept in the Host header, separated by commas."),
    Setting("max_body_bytes", 8 * MIB, "Largest request body.", KIB, 1024 * MIB),
    Setting("max_result_bytes", 4 * MIB, "Largest JSON result of an operation.", KIB, 64 * MIB),
    Setting("max_pending", 20_000, "Requests that may wait; beyond it new ones get 429.", 1, 10_000_000),
    Setting("cancel_grace_seconds", 10.0, "Time a cancelled request has to clean up before it is killed.", 0, 3600),
    Setting("shutdown_grace_seconds", 5.0, "Time running requests have to clean up when the server stops.", 0, 3600),
    Setting("max_attempts", 3, "How often a restartable request is started at most.", 1, 100),
    Setting("heartbeat_seconds", 15.0, "Longest silence of an event stream; then a heartbeat is sent.", 0.1, 3600),
    Setting("recycle_requests", 1000, "A short executor is replaced after so many requests.", 1, 10_000_000),
    Setting("recycle_seconds", 3600.0, "A short executor is replaced after so long.", 1, 10_000_000),
    Setting("recycle_mb", 150, "A short executor that grew by so many MB is replaced.", 1, 1_000_000),
    Setting("stall_seconds", 1.0, "An HTTP event loop blocked for so long is logged with the frame.", 0.05, 3600),
    Setting(
        "server_log_bytes", 10 * MIB, "The server log is rotated at this size; three old ones are kept.", KIB, 1 << 40
    ),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The values one server runs with. Fields are the rows of TABLE."""

    state_dir: str
    host: str
    port: int
    http_processes: int
    long_executors: int
    short_executors: int
    operations: str
    token: bool
    allowed_hosts: str
    max_body_bytes: int
    max_result_bytes: int
    max_pending: int
    cancel_grace_seconds: float
    shutdown_grace_seconds: float
    max_attempts: int
    heartbeat_seconds: float
    recycle_requests: int
    recycle_seconds: float
    recycle_mb: int
    stall_seconds: float
    server_log_bytes: int

    @property
    def state_path(self) -> Path:
        return Path(self.state_dir)

    @property
    def operation_modules(self) -> tuple[str, ...]:
        return split_names(self.operations)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def load(options: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from given options, else the environment, else the defaults.

    Raises:
        BadInput: a value is not of its type or out of its range; the message names the setting.
    """
    environ = os.environ if environ is None else environ
    given = {name: value for name, value in (options or {}).items() if value is not None}
    unknown = sorted(set(given) - {setting.name for setting in TABLE})
    if unknown:
        raise BadInput(f"{unknown[0]}: no such setting", hint="'sky api start --help' lists the settings.")
    values = {row.name: _checked(row, given.get(row.name, environ.get(row.env, row.default))) for row in TABLE}
    values["state_dir"] = str(Path(values["state_dir"]).expanduser().absolute())
    return Settings(**values)


def from_json(values: Mapping[str, Any]) -> Settings:
    """Settings that another process of the same server has loaded already."""
    return Settings(**{field.name: values[field.name] for field in fields(Settings)})


@dataclass(frozen=True, slots=True)
class ChildEnvironment:
    """What serve tells a child at its exec: descriptors, who the parent is, and the settings."""

    channel: int
    listener: int | None
    parent: int
    settings: Settings


def for_child(settings: Settings, *, channel: int, listener: int | None, parent: int) -> dict[str, str]:
    """The variables that `child_environment` reads in the child."""
    told = {
        "SKYSERVE_CHANNEL_FD": str(channel),
        "SKYSERVE_PARENT_PID": str(parent),
        "SKYSERVE_SETTINGS": json.dumps(settings.to_json()),
    }
    return told if listener is None else told | {"SKYSERVE_LISTEN_FD": str(listener)}


def child_environment() -> ChildEnvironment:
    """Takes what serve told this child out of its environment, so that nothing it starts sees it."""
    listener = os.environ.pop("SKYSERVE_LISTEN_FD", None)
    return ChildEnvironment(
        channel=int(os.environ.pop("SKYSERVE_CHANNEL_FD")),
        listener=None if listener is None else int(listener),
        parent=int(os.environ.pop("SKYSERVE_PARENT_PID")),
        settings=from_json(json.loads(os.environ.pop("SKYSERVE_SETTINGS"))),
    )


def split_names(text: str) -> tuple[str, ...]:
    """The names in a comma-separated list."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def told_names(options: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The settings that somebody has chosen, by an option or the environment."""
    environ = os.environ if environ is None else environ
    return tuple(row.name for row in TABLE if options.get(row.name) is not None or row.env in environ)


def state_dir_of(environ: Mapping[str, str] | None = None) -> Path:
    """The state directory a client looks into when it is told none."""
    environ = os.environ if environ is None else environ
    row = TABLE[0]
    return Path(environ.get(row.env) or row.default).expanduser().absolute()


def endpoint_of(environ: Mapping[str, str] | None = None) -> str | None:
    """The endpoint a client is told by its environment, if any."""
    environ = os.environ if environ is None else environ
    return environ.get("SKYSERVE_ENDPOINT") or environ.get("SKYPILOT_API_SERVER_ENDPOINT") or None


def token_of(environ: Mapping[str, str] | None = None) -> str | None:
    """The token a client is told by its environment, if any."""
    environ = os.environ if environ is None else environ
    return environ.get("SKYSERVE_TOKEN") or None


def own_environment() -> Mapping[str, str]:
    """The environment of this process: where `--env NAME` takes a value from."""
    return os.environ


def wants_colour(environ: Mapping[str, str] | None = None) -> bool:
    """Whether a terminal may be sent colours (NO_COLOR, TERM=dumb)."""
    environ = os.environ if environ is None else environ
    return not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def _checked(row: Setting, value: Any) -> Any:
    try:
        typed = _convert(row.type, value)
    except ValueError:
        raise BadInput(
            f"{row.name}: {value!r} is not a {row.type.__name__}", hint=f"Set {row.option} or {row.env}. {row.help}"
        ) from None
    if isinstance(typed, int | float) and not isinstance(typed, bool):
        low, high = row.low, row.high
        if math.isnan(typed) or (low is not None and typed < low) or (high is not None and typed > high):
            raise BadInput(
                f"{row.name}: {typed} is not between {low:g} and {high:g}", hint=f"Set {row.option} or {row.env}."
            )
    if isinstance(typed, str) and any(ord(char) < 32 or ord(char) == 127 for char in typed):
        raise BadInput(f"{row.name}: control characters are not allowed", hint=f"Set {row.option} or {row.env}.")
    return typed


def _convert(wanted: type, value: Any) -> Any:
    if wanted is bool and isinstance(value, str):
        word = value.lower()
        if word not in YES + NO:
            raise ValueError(value)
        return word in YES
    if wanted is int and isinstance(value, float) and not value.is_integer():
        raise ValueError(value)
    return wanted(value)
