"""The registry of clusters: what exists, where, and in which state.

Room: executors, several at once. Each verb is one short transaction; waits up to 10 s for another process's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from enum import StrEnum
from pathlib import Path

from skyserve_exec.store import statements as sql
from skyserve_exec.store.database import Database
from skyserve_exec.store.migrations import CLUSTERS, open_database


class ClusterStatus(StrEnum):
    """Where a cluster stands."""

    INIT = "INIT"
    UP = "UP"
    STOPPED = "STOPPED"


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """One row, columns in table order. `resources` and `handle` are JSON text; times are wall-clock seconds."""

    name: str
    infra: str
    status: str
    user: str
    directory: str
    resources: str
    handle: str
    created_at: float
    updated_at: float
    last_task: str | None = None


class ClusterRegistry:
    """One connection, for one thread at a time and never across a fork."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @classmethod
    def open(cls, path: Path, *, busy_seconds: float = 10.0) -> ClusterRegistry:
        """Opens the registry, makes it if it is not there, and brings its schema up to date.

        Raises:
            SchemaTooNew: a newer release wrote it; it is not touched.
            StoreBusy: another process migrates for longer than 5 s.
            DiskFull, StoreFailed: the file cannot be made or written.
        """
        return cls(open_database(path, CLUSTERS, busy_seconds=busy_seconds))

    def insert_or_get(self, cluster: ClusterRow) -> tuple[ClusterRow, bool]:
        """The cluster of that name and whether it is new: of several callers exactly one gets True."""
        with self.database.transaction():
            inserted = self.database.write(sql.INSERT_CLUSTER, astuple(cluster)) == 1
            return ClusterRow(*self.database.row(sql.SELECT_CLUSTER, (cluster.name,))), inserted

    def set_status(self, name: str, status: str, *, now: float, expected: str | None = None) -> ClusterRow | None:
        """Moves the cluster to a state. None: it is gone or, with `expected`, it was not in that state."""
        values = (str(ClusterStatus(status)), now, name, expected, expected)
        with self.database.transaction():
            return self.get(name) if self.database.write(sql.SET_CLUSTER_STATUS, values) else None

    def update(
        self,
        name: str,
        *,
        now: float,
        directory: str | None = None,
        resources: str | None = None,
        handle: str | None = None,
        last_task: str | None = None,
    ) -> ClusterRow | None:
        """New facts, and the time of them; what is not given stays. None: no such cluster."""
        values = (now, directory, resources, handle, last_task, name)
        with self.database.transaction():
            return self.get(name) if self.database.write(sql.UPDATE_CLUSTER, values) else None

    def get(self, name: str) -> ClusterRow | None:
        """The cluster; None: no such cluster."""
        row = self.database.row(sql.SELECT_CLUSTER, (name,))
        return None if row is None else ClusterRow(*row)

    def list(self, names: Sequence[str] = ()) -> list[ClusterRow]:
        """The named clusters that exist, or all, by name."""
        wanted = set(names)
        rows = [ClusterRow(*row) for row in self.database.rows(sql.SELECT_CLUSTERS)]
        return [row for row in rows if not wanted or row.name in wanted]

    def delete(self, name: str) -> bool:
        """Forgets the cluster. False: it was not there."""
        with self.database.transaction():
            return self.database.write(sql.DELETE_CLUSTER, (name,)) == 1

    def close(self) -> None:
        self.database.close()
