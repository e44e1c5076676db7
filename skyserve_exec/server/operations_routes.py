"""POST /<operation>: checks the payload, hands it to serve, and waits for the result if the client prefers so.

This is the path that has to be fast: one task, no thread, no second validation of what serve pushes.

Room: http process, event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
from starlette.types import Receive

from skyserve_exec.errors import BadInput, Draining
from skyserve_exec.messages import Submit
from skyserve_exec.operation_table import Operation
from skyserve_exec.record import record_of
from skyserve_exec.server.answers import REQUEST_ID, Answer, ClientGone
from skyserve_exec.server.payloads import check_of
from skyserve_exec.server.posted import idempotency_key, read_body, wait_seconds
from skyserve_exec.server.state import HttpState
from skyserve_exec.server.waiting import Watch

LOOK_SECONDS = 5.0  # a path that does not answer for so long is not usable
UNHURRIED_SECONDS = 0.5  # from then on it is worth a task to notice a client that has gone


class OperationEndpoint:
    """One operation's POST."""

    def __init__(self, operation: Operation, http: HttpState) -> None:
        self._operation = operation
        self._http = http
        self._check = check_of(operation)

    async def answer(self, headers: Mapping[bytes, bytes], receive: Receive) -> Answer:
        """202 with the id, or 200 with the record when it is terminal within the time the client wants to wait.

        Raises:
            SkyserveError: nothing was started.
        """
        http = self._http
        if http.link.draining:
            raise Draining("the server is stopping and takes no new requests")
        seconds, key = wait_seconds(headers), idempotency_key(headers)
        payload = self._check(await read_body(headers, receive, http.settings.max_body_bytes))
        if not self._operation.is_own:
            await _check_workdir(payload, http)
        submit = self._submit(payload, key)
        if not seconds:
            accepted = await http.link.submit(submit)
            return _accepted(accepted.request_id)
        deadline = time.monotonic() + seconds
        watch = http.waiting.watch(submit.request_id)
        try:
            accepted = await http.link.submit(submit)
            if accepted.duplicate:
                http.waiting.unwatch(watch)
                watch = http.waiting.watch(accepted.request_id)
                row = await http.reading.get(accepted.request_id)
                if row is not None and row.is_terminal:
                    return _record(record_of(row))
            await settled_before(watch, deadline, receive)
            return await self._outcome(watch)
        finally:
            http.waiting.unwatch(watch)

    async def _outcome(self, watch: Watch) -> Answer:
        if not watch.settled:
            return _accepted(watch.request_id)
        if watch.record is not None:
            return _record(watch.record)
        row = await self._http.reading.get(watch.request_id)
        return _accepted(watch.request_id) if row is None else _record(record_of(row))

    def _submit(self, payload: dict[str, Any], key: str | None) -> Submit:
        operation = self._operation
        text = orjson.dumps(payload)
        # Of what the client sent: a name that is made here differs when the same POST comes again.
        fingerprint = None if key is None else hashlib.sha256(operation.name.encode() + b"\0" + text).hexdigest()
        if operation.name == "launch" and payload.get("cluster") is None:
            payload["cluster"] = cluster_name(self._http.user)
            text = orjson.dumps(payload)
        cluster = None if operation.is_own else payload.get("cluster")
        return Submit(
            ticket=self._http.link.ticket(),
            request_id=str(uuid.uuid4()),
            name=operation.name,
            payload=text.decode(),
            schedule_type=operation.schedule_type.value,
            user=self._http.user,
            cluster=cluster,
            lock_key=f"cluster/{cluster}" if operation.locks_cluster and cluster is not None else None,
            restartable=operation.restartable,
            deadline=operation.deadline,
            idempotency_key=key,
            fingerprint=fingerprint,
            created_at=time.time(),
        )


def cluster_name(user: str) -> str:
    """A name for a cluster whose user gave none: sky-1f2e-user."""
    plain = re.sub(r"[^a-z0-9]+", "-", user.lower()).strip("-")[:30].rstrip("-")
    return f"sky-{secrets.token_hex(2)}-{plain or 'user'}"


async def settled_before(watch: Watch, deadline: float, receive: Receive) -> bool:
    """Waits until the request has ended, or the server ends, or the time is over; whether the request has ended.

    Raises:
        ClientGone: the client went away meanwhile.
    """
    if await watch.settled_within(min(UNHURRIED_SECONDS, deadline - time.monotonic())):
        return True
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        return False
    gone = asyncio.ensure_future(_disconnected(receive))
    gone.add_done_callback(lambda _: watch.wake())
    try:
        settled = await watch.settled_within(remaining)
        if gone.done() and not gone.cancelled():
            raise ClientGone
        return settled
    finally:
        gone.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _check_workdir(payload: Mapping[str, Any], http: HttpState) -> None:
    """`task.workdir` must be a directory here; a file system that hangs shall hang only the thread that looks."""
    task = payload.get("task")
    workdir = task.get("workdir") if isinstance(task, dict) else None
    if not isinstance(workdir, str):
        return
    looking = asyncio.get_running_loop().run_in_executor(http.looks, _why_not_usable, workdir)
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            fault = await looking
    except TimeoutError:
        fault = f"does not answer within {LOOK_SECONDS:g} s"
    if fault is not None:
        raise BadInput(
            f"task.workdir: {ascii(workdir)[1:-1]} {fault}",
            hint="It must be a directory on the machine where the server runs.",
        )


def _why_not_usable(workdir: str) -> str | None:
    try:
        if not Path(workdir).is_dir():
            return "is not a directory" if Path(workdir).exists() else "does not exist"
    except OSError as error:
        return f"cannot be used: {error.strerror}"
    return None if os.access(workdir, os.R_OK | os.X_OK) else "cannot be read"


def _accepted(request_id: str) -> Answer:
    return Answer(202, orjson.dumps({"request_id": request_id}), ((REQUEST_ID, request_id.encode()),))


def _record(record: Mapping[str, Any]) -> Answer:
    return Answer(200, orjson.dumps(record), ((REQUEST_ID, record["request_id"].encode()),))
