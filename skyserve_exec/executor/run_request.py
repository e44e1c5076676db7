"""Runs one request: its output into its log, its end as a report, and everything it changed put back.

Room: executor process, main thread.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import re
import signal
import traceback
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson

from skyserve_exec.errors import RequestInterrupted, SkyserveError
from skyserve_exec.executor.baseline import Baseline
from skyserve_exec.executor.captured_output import captured_output, drop_empty_log
from skyserve_exec.executor.loaded_operations import LoadedOperations
from skyserve_exec.messages import Finished, HandOff, Run
from skyserve_exec.paths import StateDir
from skyserve_exec.record import error_object
from skyserve_exec.request_context import CURRENT, ExitCode, RequestContext, TailHandOff
from skyserve_exec.settings import Settings
from skyserve_exec.states import Outcome

TRACEBACK_CHARACTERS = 8000
MESSAGE_CHARACTERS = 10_000
LARGEST_EXIT_CODE = 255
MAYBE_LARGE = re.compile(r"\d{19}")


@dataclass(slots=True)
class Running:
    """Which request runs now; the signal handler reads and marks it. No request: nothing is interrupted yet."""

    request_id: str | None = None
    interrupted: bool = False
    signalled_early: bool = False


@dataclass(frozen=True, slots=True)
class _End:
    outcome: Outcome
    result: str | None = None
    error: dict[str, Any] | None = None
    exit_code: int | None = None


def run_request(
    order: Run,
    running: Running,
    operations: LoadedOperations,
    settings: Settings,
    baseline: Baseline,
    slot: str,
) -> Finished | HandOff:
    """Runs it to its end and says how it ended; never raises for what the operation does."""
    executor = os.getpid()
    with captured_output(order.log_path):
        end = _call(order, running, operations, settings)
        if os.getpid() != executor:
            os._exit(0)  # a child that the operation forked came back as well: only the executor answers
        why = baseline.restore(settings, interrupted=running.interrupted)
    if slot.startswith("long") and not why:
        why = "served its request"
    running.interrupted = False
    if isinstance(end, TailHandOff):
        return HandOff(
            request_id=order.request_id,
            argv=list(end.argv),
            env=dict(end.env),
            cwd=str(end.cwd),
            resume=dict(end.resume),
            reason=end.reason,
            reusable=not why,
            why_not_reusable=why,
        )
    drop_empty_log(order.log_path)
    return Finished(order.request_id, end.outcome.value, end.result, end.error, end.exit_code, not why, why)


def _call(order: Run, running: Running, operations: LoadedOperations, settings: Settings) -> _End | TailHandOff:
    context = RequestContext(
        order.request_id, order.name, order.attempt, order.user, StateDir(settings.state_path), order.resume
    )
    token = CURRENT.set(context)
    try:
        try:
            item = operations.by_name.get(order.name)
            if item is None:
                return _End(Outcome.FAILED, error=_unknown_operation(order.name))
            payload = orjson.loads(order.payload)
            running.request_id = order.request_id
            if running.signalled_early:
                signal.raise_signal(signal.SIGTERM)
            value = item.call(payload)
        finally:
            running.request_id = None
        return _ended_well(value, running, settings)
    except RequestInterrupted as interrupt:
        running.request_id = None
        running.interrupted = True
        return _End(Outcome.INTERRUPTED, error=error_object(type(interrupt).__name__, str(interrupt)))
    except BaseException as error:  # the wall of this room: what the operation raised becomes the row's error
        running.request_id = None
        return _failed(error, running)
    finally:
        CURRENT.reset(token)


def _ended_well(value: object, running: Running, settings: Settings) -> _End | TailHandOff:
    if running.interrupted:
        # It was told to stop and returned as if nothing had been said: it did not do its work.
        return _End(Outcome.INTERRUPTED, error=error_object("RequestInterrupted", "it was told to stop"))
    if isinstance(value, TailHandOff):
        return _checked_hand_off(value)
    exit_code = None
    if isinstance(value, ExitCode):
        exit_code, value = value.code, value.result
        if type(exit_code) is not int or not 0 <= exit_code <= LARGEST_EXIT_CODE:
            message = f"ExitCode({exit_code!r}): an exit code is an integer from 0 to {LARGEST_EXIT_CODE}"
            return _End(Outcome.FAILED, error=error_object("BadExitCode", message))
    try:
        result = _encoded(value)
    except (TypeError, ValueError, RecursionError) as error:
        message = f"the result cannot be written as JSON: {error}"
        return _End(Outcome.FAILED, error=error_object("ResultNotJson", message, hint="Return plain JSON values."))
    if len(result) > settings.max_result_bytes:
        message = f"the result has {len(result)} bytes, more than max_result_bytes ({settings.max_result_bytes})"
        hint = "Write large results to a file and return its path."
        return _End(Outcome.FAILED, error=error_object("ResultTooLarge", message, hint=hint))
    return _End(Outcome.SUCCEEDED, result=result, exit_code=exit_code)


def _checked_hand_off(value: TailHandOff) -> _End | TailHandOff:
    try:
        words = [*value.argv, *value.env, *value.env.values()]
        if not value.argv or not all(isinstance(word, str) and "\0" not in word for word in words):
            raise TypeError("argv and env hold strings, and argv at least one")
        orjson.dumps([words, dict(value.resume), str(value.cwd), value.reason])
    except (TypeError, ValueError) as error:
        message = f"the hand-off to a tail cannot be carried: {error}"
        return _End(Outcome.FAILED, error=error_object("HandOffNotJson", message, hint="Use strings and plain JSON."))
    return value


def _encoded(value: object) -> str:
    """JSON text that every reader takes: no NaN, no lone surrogates, 64-bit integers."""
    if value is None:
        return "null"
    text = json.dumps(value, allow_nan=False, default=_plain, separators=(",", ":"))
    orjson.loads(text)
    if MAYBE_LARGE.search(text):
        json.loads(text, parse_int=_checked_integer)
    return text


def _checked_integer(digits: str) -> int:
    # Most readers of JSON would silently make it a float.
    number = int(digits)
    if not -(1 << 63) <= number < 1 << 64:
        raise ValueError(f"the integer {digits[:40]} does not fit into 64 bits")
    return number


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Path | UUID):
        return str(value)
    if isinstance(value, enum.Enum):
        return value.value
    if hasattr(value, "model_dump"):  # a pydantic model
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not JSON")


def _failed(error: BaseException, running: Running) -> _End:
    if running.interrupted:
        # Cleaning up after the interrupt failed; it is still the interrupt that ended it.
        traceback.print_exception(error)
        return _End(Outcome.INTERRUPTED, error=error_object(type(error).__name__, _message_of(error)))
    if isinstance(error, SkyserveError):
        body = error_object(type(error).__name__, _message_of(error), hint=_valid(error.hint))
        code = getattr(error, "job_exit_code", None)
        return _End(Outcome.FAILED, error=body, exit_code=code)
    if isinstance(error, SystemExit):
        code = _exit_code_of(error)
        body = error_object("SystemExit", f"the operation left with exit code {code}: {_message_of(error)}")
        return _End(Outcome.FAILED, error=body, exit_code=code)
    text = "".join(traceback.format_exception(error))
    os.write(2, text.encode(errors="backslashreplace"))
    body = error_object(type(error).__name__, _message_of(error), traceback=_valid(text[-TRACEBACK_CHARACTERS:]))
    return _End(Outcome.FAILED, error=body)


def _exit_code_of(error: SystemExit) -> int:
    """As the system would have it: the lowest byte, 0 for None, 1 for a message."""
    if error.code is None:
        return 0
    return error.code & LARGEST_EXIT_CODE if isinstance(error.code, int) else 1


def _message_of(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as broken:  # a user's __str__ may raise anything
        text = f"(its message cannot be shown: {type(broken).__name__})"
    return _valid(text[:MESSAGE_CHARACTERS])


def _valid(text: str) -> str:
    """What is no valid Unicode must not make the report unreadable."""
    return text.encode(errors="backslashreplace").decode()


def _unknown_operation(name: str) -> dict[str, Any]:
    hint = "Start the server with the module that holds it: --operations MODULE."
    return error_object("UnknownOperation", f"this server has no operation {name}", hint=hint)
