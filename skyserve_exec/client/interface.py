"""What a client can be asked for, once: the methods of Client and of AsyncClient are these.

The two differ only in what a method gives back, which is a type parameter: a handle or the awaitable of one. So their
names, parameters and documentation cannot drift apart.

Room: the user's process. No I/O: subclasses carry out plans.
"""

from __future__ import annotations

import abc
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from skyserve_exec.client import plans, wire
from skyserve_exec.client.patience import Patience
from skyserve_exec.client.plans import Following, Plan
from skyserve_exec.client.wire import Call

Submitted = TypeVar("Submitted")  # what a submit gives: Request, or an awaitable of AsyncRequest
Body = TypeVar("Body")  # what a read gives: a dict, or an awaitable of one
Handle = TypeVar("Handle")  # Request or AsyncRequest
Output = TypeVar("Output")  # LogStream or AsyncLogStream
Value = TypeVar("Value")  # any JSON value, or an awaitable of one
Word = TypeVar("Word")  # text, or an awaitable of it
Task = Mapping[str, Any]


class Core(abc.ABC):
    """How a client carries out plans; everything else is made of this."""

    @abc.abstractmethod
    def carry_out(self, plan: Plan[Any]) -> Any:
        """What the plan returns, or an awaitable of it."""

    @abc.abstractmethod
    def open_stream(self, what: Following) -> Any:
        """The iterator of a request's log."""

    @abc.abstractmethod
    def patience(self) -> Patience:
        """Fresh patience for one plan."""


class Operations(Core, Generic[Submitted, Body, Handle, Output]):
    """One method per operation, and `api_*` for the requests themselves.

    Every operation is submitted once, however often the connection breaks meanwhile: it carries an idempotency key,
    which may be given to make a submit repeatable from outside, too.
    """

    def launch(self, task: Task, *, cluster: str | None = None, idempotency_key: str | None = None) -> Submitted:
        """Creates or reuses a cluster, sets it up and submits the task as a job.

        The result is an object with the `cluster`'s name and the `job_id`.

        Args:
            task: as in a task file: name, resources, workdir, setup, run, envs, secrets. A relative workdir starts in
                the current directory of this process.
            cluster: its name; without it the server makes one.
        """
        return self._submit("launch", {"task": _with_full_workdir(task), "cluster": cluster}, idempotency_key)

    def exec_(self, cluster: str, task: Task, *, idempotency_key: str | None = None) -> Submitted:
        """Submits the task as a job to a cluster that is up, without its setup. Result as of `launch`."""
        return self._submit("exec", {"cluster": cluster, "task": _with_full_workdir(task)}, idempotency_key)

    def queue(self, cluster: str | None = None, *, skip_finished: bool = False) -> Submitted:
        """The jobs of a cluster, or of all clusters."""
        return self._submit("queue", {"cluster": cluster, "skip_finished": skip_finished}, None)

    def logs(self, cluster: str, job_id: int | None = None, *, follow: bool = True, tail: int = 0) -> Submitted:
        """A job's output: stream the request. Its exit code, in the record, is the job's.

        Args:
            job_id: without it the latest job.
            follow: until the job ends.
            tail: begin with the last so many lines; 0 for all.
        """
        return self._submit("logs", {"cluster": cluster, "job_id": job_id, "follow": follow, "tail": tail}, None)

    def cancel(self, cluster: str, job_ids: Sequence[int] = (), *, all_jobs: bool = False) -> Submitted:
        """Cancels jobs of a cluster. (`api_cancel` cancels requests.)"""
        return self._submit("cancel", {"cluster": cluster, "job_ids": list(job_ids), "all": all_jobs}, None)

    def status(self, clusters: Sequence[str] = ()) -> Submitted:
        """The clusters with these names, or all."""
        return self._submit("status", {"clusters": list(clusters)}, None)

    def down(self, cluster: str) -> Submitted:
        """Cancels the jobs of a cluster and removes it."""
        return self._submit("down", {"cluster": cluster}, None)

    def call(self, name: str, /, *, idempotency_key: str | None = None, **arguments: Any) -> Submitted:
        """Any operation by its name, such as one of your own, with its parameters."""
        return self.submit(name, arguments, idempotency_key=idempotency_key)

    def submit(self, name: str, payload: Mapping[str, Any], *, idempotency_key: str | None = None) -> Submitted:
        """As `call`, with the parameters as a mapping: for names that are no Python names."""
        submitted: Submitted = self.carry_out(self._submitting(name, payload, idempotency_key))
        return submitted

    @abc.abstractmethod
    def request(self, request_id: str) -> Handle:
        """A handle for a request that was submitted before, by anybody. Asks the server nothing yet."""

    def api_info(self) -> Body:
        """The server's version, health, settings and pools."""
        return self._read(Call("GET", "/api/health"))

    def api_operations(self) -> Body:
        """The operations with the JSON schema of their parameters, under `operations`."""
        return self._read(Call("GET", "/api/operations"))

    def api_status(
        self,
        *,
        request_ids: Sequence[str] = (),
        status: Sequence[str] = (),
        name: str | None = None,
        user: str | None = None,
        cluster: str | None = None,
        schedule_type: str | None = None,
        since: float | None = None,
        limit: int = 100,
        cursor: int | None = None,
    ) -> Body:
        """Requests, newest first, under `requests`; pass `next_cursor` as `cursor` for the next page.

        Args:
            request_ids: ids or their beginnings.
            since: created then or later, Unix seconds.
        """
        return self._read(
            wire.status_call(
                request_id=list(request_ids),
                status=list(status),
                name=name,
                user=user,
                cluster=cluster,
                schedule_type=schedule_type,
                since=since,
                limit=limit,
                cursor=cursor,
            )
        )

    def api_get(self, request_id: str, *, timeout: float = 0.0) -> Body:
        """A request's record, once it has ended or after `timeout` seconds."""
        record: Body = self.carry_out(plans.wait(request_id, timeout, self.patience(), time.monotonic))
        return record

    def api_stream(self, request_id: str, *, follow: bool = True, tail: int = 0, offset: int | None = None) -> Output:
        """What a request prints, as of `Request.stream`."""
        output: Output = self.open_stream(Following(request_id, follow=follow, tail=tail, offset=offset))
        return output

    def api_cancel(
        self,
        request_ids: Sequence[str] = (),
        *,
        all_requests: bool = False,
        cluster: str | None = None,
        user: str | None = None,
        force: bool = False,
    ) -> Body:
        """Cancels requests by id or its beginning, all active ones, or all of a cluster.

        Args:
            user: with `all_requests` or `cluster`, only those of this user.
            force: without time to clean up.

        Under `cancelled`, what became of each: 'cancelled', 'cancelling' or 'already SUCCEEDED' and the like.
        """
        call = wire.cancel_call(list(request_ids), everything=all_requests, cluster=cluster, user=user, force=force)
        return self._read(call)

    def _submit(self, name: str, payload: Mapping[str, Any], key: str | None) -> Submitted:
        given = {field: value for field, value in payload.items() if value is not None}
        return self.submit(name, given, idempotency_key=key)

    def _submitting(self, name: str, payload: Mapping[str, Any], key: str | None) -> Plan[Handle]:
        request_id = yield from plans.submit(name, payload, key or str(uuid.uuid4()), self.patience())
        return self.request(request_id)

    def _read(self, call: Call) -> Body:
        body: Body = self.carry_out(plans.read_json(call, self.patience()))
        return body


def _with_full_workdir(task: Task) -> dict[str, Any]:
    workdir = task.get("workdir")
    if not isinstance(workdir, str) or not workdir:
        return dict(task)
    return {**task, "workdir": str(Path(workdir).expanduser().absolute())}


class RequestHandle(Generic[Body, Output, Value, Word]):
    """One submitted request."""

    def __init__(self, client: Core, request_id: str) -> None:
        self._client = client
        self.request_id = request_id

    def result(self, timeout: float | None = None) -> Value:
        """Waits for the end; what the operation returned.

        Goes on waiting while the server restarts, for a bounded time.

        Raises:
            RequestFailed: it did not succeed; `.record` is its whole record, `.error` what the operation said.
            RequestWasCancelled: it was cancelled.
            TimeoutError: it has not ended within `timeout` seconds.
        """
        plan = plans.result(self.request_id, timeout, self._client.patience(), time.monotonic)
        value: Value = self._client.carry_out(plan)
        return value

    def record(self, timeout: float = 0.0) -> Body:
        """The record as it is, or once it is terminal within `timeout` seconds."""
        plan = plans.wait(self.request_id, timeout, self._client.patience(), time.monotonic)
        record: Body = self._client.carry_out(plan)
        return record

    def stream(
        self,
        *,
        follow: bool = True,
        tail: int = 0,
        offset: int | None = None,
        cancel_on_disconnect: bool = False,
        told: Callable[[dict[str, Any]], None] | None = None,
    ) -> Output:
        """What it prints, as an iterator of bytes, every byte once; `.end` then says how the request ended.

        A broken connection is resumed at the exact byte, as long as that makes progress.

        Args:
            follow: until the request ends; otherwise what there is.
            tail: begin with the last so many lines; 0 for all.
            offset: begin at this byte.
            cancel_on_disconnect: cancel the request when this reader goes away.
            told: called with what the request waits for (`reason`, `position`), as long as it is PENDING.

        Raises:
            StreamIncomplete: the connection broke and did not come back in time.
        """
        what = Following(self.request_id, follow, tail, offset, cancel_on_disconnect, told)
        output: Output = self._client.open_stream(what)
        return output

    def cancel(self, force: bool = False) -> Word:
        """Cancels it; 'cancelled', 'cancelling' or 'already SUCCEEDED' and the like. `force`: no time to clean up."""
        word: Word = self._client.carry_out(self._cancelling(force))
        return word

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.request_id}>"

    def _cancelling(self, force: bool) -> Plan[str]:
        call = wire.cancel_call([self.request_id], everything=False, cluster=None, user=None, force=force)
        body = yield from plans.read_json(call, self._client.patience())
        return str(next(iter(body["cancelled"].values())))
