"""The requests table as everybody else sees it: single records, lists, and why a request waits.

Room: http, in threads; never on the event loop. Reads only, through a connection that cannot write.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from skyserve_exec.errors import BadInput
from skyserve_exec.record import RequestRow
from skyserve_exec.states import Status
from skyserve_exec.store import statements as sql
from skyserve_exec.store.migrations import REQUESTS, open_reader

MAX_LIMIT = 1000
MAX_POSITION = 1000  # counting stops here
MAX_HOLDERS = 20
PREFIX_END = "\U0010ffff"  # sorts after every character an id has
LAST_SEQ = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ListQuery:
    """What to list; an empty or None field is no condition. `cursor` is `next_cursor` of the page before.

    `id_prefixes`: requests whose id begins with any of these. `since`: created then or later, wall-clock seconds.
    """

    statuses: tuple[str, ...] = ()
    name: str | None = None
    user: str | None = None
    cluster: str | None = None
    schedule_type: str | None = None
    since: float | None = None
    id_prefixes: tuple[str, ...] = ()
    limit: int = 100
    cursor: int | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Newest first. The rows are summaries: payload, result, error and resume are not read. The last has no cursor."""

    rows: list[RequestRow]
    next_cursor: int | None


class Holder(NamedTuple):
    """A running request that occupies an executor."""

    request_id: str
    name: str
    started_at: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a request waits. `position`: requests before it in its queue, counted up to 1000.

    `holders`: who occupies the executors of its queue, at most 20. `locked_by`: the id of the request that holds its
    lock or gets it first.
    """

    position: int
    holders: list[Holder]
    locked_by: str | None


class RequestReader:
    """One read-only connection, for one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Opens the table.

        Raises:
            SchemaTooNew, StoreBusy, StoreFailed: see migrations.open_reader.
        """
        self.database = open_reader(path, REQUESTS)

    def get(self, request_id: str) -> RequestRow | None:
        """The whole row; None: unknown."""
        row = self.database.row(sql.SELECT_REQUEST, (request_id,))
        return None if row is None else RequestRow(*row)

    def get_many(self, ids: Sequence[str]) -> list[RequestRow]:
        """The whole rows, in the order of the ids; unknown ones are missing."""
        found = (self.get(request_id) for request_id in ids)
        return [row for row in found if row is not None]

    def statuses(self, ids: Sequence[str]) -> dict[str, str]:
        """Where these requests stand, in one query; unknown ones are missing."""
        return dict(self.database.rows(sql.SELECT_STATUSES, (json.dumps(list(ids)),)))

    def resolve(self, prefix: str, *, limit: int = 10) -> list[str]:
        """Full ids that begin with this, at most `limit`: none is unknown, several are ambiguous."""
        if not prefix:
            return []
        rows = self.database.rows(sql.SELECT_BY_PREFIX, (prefix, prefix + PREFIX_END, limit))
        return [row[0] for row in rows]

    def latest(self) -> str | None:
        """The newest request's id."""
        row = self.database.row(sql.SELECT_LATEST)
        return None if row is None else row[0]

    def list(self, query: ListQuery) -> Page:
        """One page.

        Raises:
            BadInput: a field of the query is out of its range.
        """
        _check(query)
        if query.id_prefixes:
            return self._list_by_prefix(query)
        statuses = [*query.statuses, None, None, None, None, None][:5]
        conditions = (query.name, query.user, query.cluster, query.schedule_type, query.since)
        values: list[Any] = [LAST_SEQ if query.cursor is None else query.cursor, statuses[0], *statuses]
        for value in conditions:
            values += [value, value]
        rows = self.database.rows(sql.SELECT_PAGE, [*values, query.limit + 1])
        return _page([RequestRow(*row) for row in rows], query.limit)

    def waiting(self, row: RequestRow) -> Waiting:
        """Why this PENDING request waits."""
        before = self.database.row(sql.COUNT_BEFORE, (row.schedule_type, row.seq, MAX_POSITION))
        holders = self.database.rows(sql.SELECT_HOLDERS, (row.schedule_type, MAX_HOLDERS))
        locked_by = None
        if row.lock_key is not None:
            locked_by = self.database.row(sql.SELECT_LOCKED_BY, (row.lock_key, row.seq, row.seq))
        return Waiting(before[0], [Holder(*holder) for holder in holders], locked_by[0] if locked_by else None)

    def close(self) -> None:
        self.database.close()

    def _list_by_prefix(self, query: ListQuery) -> Page:
        found: dict[int, RequestRow] = {}
        for prefix in query.id_prefixes:
            for row in self.database.rows(sql.SELECT_SUMMARIES_BY_PREFIX, (prefix, prefix + PREFIX_END)):
                found[row[0]] = RequestRow(*row)
        fitting = [found[seq] for seq in sorted(found, reverse=True) if _fits(found[seq], query)]
        return _page(fitting[: query.limit + 1], query.limit)


def _check(query: ListQuery) -> None:
    if not 1 <= query.limit <= MAX_LIMIT:
        raise BadInput(f"limit: {query.limit} is not between 1 and {MAX_LIMIT}")
    for status in query.statuses:
        if status not in Status.__members__:
            raise BadInput(f"status: {status!r} is unknown", hint=f"One of {', '.join(Status.__members__)}.")


def _fits(row: RequestRow, query: ListQuery) -> bool:
    return (
        (query.cursor is None or row.seq < query.cursor)
        and (not query.statuses or row.status in query.statuses)
        and query.name in (None, row.name)
        and query.user in (None, row.user)
        and query.cluster in (None, row.cluster)
        and query.schedule_type in (None, row.schedule_type)
        and (query.since is None or row.created_at >= query.since)
    )


def _page(rows: list[RequestRow], limit: int) -> Page:
    more = len(rows) > limit
    return Page(rows[:limit], rows[limit - 1].seq if more else None)
