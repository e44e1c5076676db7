"""Everything that can go wrong, as one tree; a message says what happened, a hint what to do next.

    SkyserveError
    ├─ BadInput (400) ── UnsupportedField, AmbiguousId
    ├─ Unauthorized (401)   Forbidden (403)   NotFound (404)   Conflict (409) ── SchemaTooNew
    ├─ TooLarge (413)       WrongContentType (415)
    ├─ SetupFailed
    ├─ Busy (429)           Unavailable (503) ── Draining, StoreBusy      DiskFull (507)      StoreFailed
    ├─ ServerNotRunning     ServerUnreachable     StartFailed     StreamIncomplete
    └─ RequestFailed ── RequestWasCancelled        what .result() raises for a request that did not succeed

RequestInterrupted and its children are BaseExceptions raised *inside* a running operation; they are not errors.

Room: every process. No I/O.
"""

from __future__ import annotations

from typing import Any

# Exit codes of the command line. Where a job's end is awaited the code is the job's own (128+N for signal N).
EXIT_OK = 0
EXIT_USAGE = 2  # bad input: nothing was started, written or lost
EXIT_INTERNAL = 70  # a fault of this program
EXIT_REQUEST_FAILED = 100  # the request ended FAILED
EXIT_CANCELLED = 101  # the request or the job was cancelled
EXIT_STREAM_INCOMPLETE = 102  # output was cut before the end was known; never 0
EXIT_UNREACHABLE = 103  # no server, or it does not answer
EXIT_REFUSED = 104  # the server refuses for now (429, 503, 507)
EXIT_NOT_FOUND = 105  # unknown id, cluster or job
EXIT_CONFLICT = 106  # something else holds it: port, lock, other options, name
EXIT_UNAUTHORIZED = 107  # token missing or wrong
EXIT_JOB_NOT_FINISHED = 108  # `logs --status` / `--no-follow` of a job that has not ended
EXIT_INTERRUPTED = 130  # Ctrl-C


class SkyserveError(Exception):
    """Root of all errors. `str(error)` is the message; `hint` tells the user what to do next."""

    http_status = 500
    exit_code = EXIT_INTERNAL
    hint = ""

    def __init__(self, message: str, *, hint: str | None = None, request_id: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.request_id = request_id
        if hint is not None:
            self.hint = hint

    def to_json(self) -> dict[str, Any]:
        """The one JSON error shape."""
        body: dict[str, Any] = {"type": type(self).__name__, "message": self.message, "hint": self.hint}
        if self.request_id is not None:
            body["request_id"] = self.request_id
        return {"error": body}


class BadInput(SkyserveError):
    """The input is wrong; the message names the field. Nothing was changed."""

    http_status = 400
    exit_code = EXIT_USAGE


class UnsupportedField(BadInput):
    """A field that this server does not know; the hint lists the ones it does."""


class AmbiguousId(BadInput):
    """An id prefix that fits several requests."""


class Unauthorized(SkyserveError):
    """No token, or a wrong one."""

    http_status = 401
    exit_code = EXIT_UNAUTHORIZED
    hint = "Pass the server's token: the file 'token' in its state directory holds it (clients: SKYSERVE_TOKEN)."


class Forbidden(SkyserveError):
    """The Host or Origin header does not belong to this server."""

    http_status = 403
    exit_code = EXIT_UNAUTHORIZED


class NotFound(SkyserveError):
    """Unknown, or not yours: both get the same answer."""

    http_status = 404
    exit_code = EXIT_NOT_FOUND


class Conflict(SkyserveError):
    """Something else holds the name, the port, the lock or the key."""

    http_status = 409
    exit_code = EXIT_CONFLICT


class SchemaTooNew(Conflict):
    """A newer release has written this database; nothing in it was touched."""

    hint = "Start the newer release again, or choose another state directory with --state-dir or SKYSERVE_STATE_DIR."


class TooLarge(SkyserveError):
    """The body is larger than the server takes."""

    http_status = 413
    exit_code = EXIT_USAGE


class WrongContentType(SkyserveError):
    """Only JSON is taken."""

    http_status = 415
    exit_code = EXIT_USAGE
    hint = "Send the header 'Content-Type: application/json'."


class Busy(SkyserveError):
    """A limit is reached; try again after `retry_after` seconds."""

    http_status = 429
    exit_code = EXIT_REFUSED
    retry_after = 5


class Unavailable(SkyserveError):
    """The server cannot do this now; try again after `retry_after` seconds."""

    http_status = 503
    exit_code = EXIT_REFUSED
    retry_after = 5


class Draining(Unavailable):
    """The server is stopping and takes no new work."""

    hint = "Send it again when the server is back; running requests can still be followed and cancelled."


class StoreBusy(Unavailable):
    """Another process holds the database's write lock; nothing was written. Try again soon."""

    hint = "It passes by itself; if it stays, see which process has the database open (a shell, a backup)."
    retry_after = 1


class StoreFailed(SkyserveError):
    """The database cannot be read or written: damaged, not a database, read-only, or the disk fails."""

    hint = "Check the disk and the rights of the state directory; a damaged database can be moved away."


class DiskFull(SkyserveError):
    """The state directory's disk is full."""

    http_status = 507
    exit_code = EXIT_REFUSED
    hint = "Free space on the disk of the state directory; the server goes on by itself."


class ServerNotRunning(SkyserveError):
    """No server holds this state directory."""

    exit_code = EXIT_UNREACHABLE
    hint = "Start one with: sky api start"


class ServerUnreachable(SkyserveError):
    """A server is expected but does not answer."""

    exit_code = EXIT_UNREACHABLE
    hint = "See whether it runs with: sky api info"


class StartFailed(SkyserveError):
    """The server ended before it was healthy. `last_lines` is what it said last."""

    exit_code = EXIT_UNREACHABLE

    def __init__(self, message: str, *, hint: str | None = None, request_id: str | None = None) -> None:
        super().__init__(message, hint=hint, request_id=request_id)
        self.last_lines: list[str] = []


class StreamIncomplete(SkyserveError):
    """The stream was cut before the end was known."""

    exit_code = EXIT_STREAM_INCOMPLETE


class SetupFailed(SkyserveError):
    """The setup of a task ended with an exit code other than 0; the cluster stays."""

    exit_code = EXIT_REQUEST_FAILED


class RequestFailed(SkyserveError):
    """A request ended FAILED. `record` is its whole record, `error` what the operation said."""

    exit_code = EXIT_REQUEST_FAILED

    def __init__(self, message: str, *, record: dict[str, Any], hint: str | None = None) -> None:
        super().__init__(message, hint=hint, request_id=record.get("request_id"))
        self.record = record

    @property
    def error(self) -> dict[str, Any]:
        return self.record.get("error") or {}


class RequestWasCancelled(RequestFailed):
    """A request ended CANCELLED."""

    exit_code = EXIT_CANCELLED


class RequestInterrupted(BaseException):
    """Raised inside a running operation to make it stop. Clean up within the grace period and let it pass."""


class RequestCancelled(RequestInterrupted):
    """Somebody cancelled this request."""


class DeadlineExceeded(RequestInterrupted):
    """This request ran longer than its operation's deadline."""


class ServerShutdown(RequestInterrupted):
    """The server stops. A restartable request runs again after the next start."""
