"""The requests table as everybody else sees it: single records, lists, and why a request waits.

Room: http, in threads; never on the event loop. Reads only, through a connection that cannot write.
"""

from __future__ import annotations

import json
from bisect import bisect_left
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
        before = LAST_SEQ if query.cursor is None else query.cursor
        values = (before, *_filters(query), query.limit + 1)
        if not query.id_prefixes:
            return _page(self.database.rows(sql.SELECT_PAGE, values), query.limit)
        found: dict[int, Any] = {}
        for prefix in query.id_prefixes:
            rows = self.database.rows(sql.SELECT_PAGE_BY_PREFIX, (prefix, prefix + PREFIX_END, *values))
            found.update((row[0], row) for row in rows)
        return _page([found[seq] for seq in sorted(found, reverse=True)], query.limit)

    def waiting(self, row: RequestRow) -> Waiting:
        """Why this PENDING request waits."""
        return self.explain([row])[row.request_id]

    def explain(self, rows: Sequence[RequestRow]) -> dict[str, Waiting]:
        """Why these PENDING requests wait, by id; a thousand of them take little longer than one."""
        fronts, holders = {}, {}
        for kind in {row.schedule_type for row in rows}:
            front = self.database.rows(sql.SELECT_FRONT, (kind, MAX_POSITION, kind, MAX_POSITION))
            fronts[kind] = [seq for (seq,) in front]
            holders[kind] = [Holder(*found) for found in self.database.rows(sql.SELECT_HOLDERS, (kind, MAX_HOLDERS))]
        return {
            row.request_id: Waiting(
                position=bisect_left(fronts[row.schedule_type], row.seq),
                holders=holders[row.schedule_type],
                locked_by=self._locked_by(row),
            )
            for row in rows
        }

    def close(self) -> None:
        self.database.close()

    def _locked_by(self, row: RequestRow) -> str | None:
        if row.lock_key is None:
            return None
        found: str | None = self.database.row(sql.SELECT_LOCKED_BY, (row.lock_key, row.lock_key, row.seq))[0]
        return None if found == row.request_id else found


def _check(query: ListQuery) -> None:
    if not 1 <= query.limit <= MAX_LIMIT:
        raise BadInput(f"limit: {query.limit} is not between 1 and {MAX_LIMIT}")
    if query.cursor is not None and not 0 <= query.cursor <= LAST_SEQ:
        raise BadInput(
            "cursor: it is not one that a list call has answered", hint="Pass next_cursor of the page before."
        )
    for status in query.statuses:
        if status not in Status.__members__:
            raise BadInput(f"status: {status!r} is unknown", hint=f"One of {', '.join(Status.__members__)}.")


def _filters(query: ListQuery) -> list[Any]:
    statuses = [*dict.fromkeys(query.statuses), None, None, None, None, None][: len(Status)]
    values: list[Any] = [statuses[0], *statuses]
    for value in (query.name, query.user, query.cluster, query.schedule_type, query.since):
        values += [value, value]
    return values


def _page(found: Sequence[Any], limit: int) -> Page:
    rows = [RequestRow(*row) for row in found[:limit]]
    return Page(rows, rows[-1].seq if len(found) > limit else None)
