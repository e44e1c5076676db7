"""A request server: a durable queue, bounded executors, live logs and cancel for work on machines."""

from __future__ import annotations

from skyserve_exec.errors import DeadlineExceeded, RequestCancelled, RequestInterrupted, ServerShutdown
from skyserve_exec.own_operation import operation
from skyserve_exec.request_context import ExitCode, current_request
from skyserve_exec.version import __version__

__all__ = [
    "DeadlineExceeded",
    "ExitCode",
    "RequestCancelled",
    "RequestInterrupted",
    "ServerShutdown",
    "__version__",
    "current_request",
    "operation",
]
