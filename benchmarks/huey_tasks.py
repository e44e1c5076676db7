"""The module that huey's consumer and its submitter import.

Room: huey's processes. huey wants its instance in a module, so this one is made at import, from the environment.
"""

from __future__ import annotations

import os

from huey import SqliteHuey

DATABASE = "BENCHMARK_DATABASE"


def make_huey(database: str) -> SqliteHuey:
    """huey on SQLite as it is shipped: WAL, `fsync` not given."""
    return SqliteHuey("benchmark", filename=database)


def nothing() -> int:
    """huey stores no result that is None, so the no-op returns a number."""
    return 1


if DATABASE in os.environ:
    consumed = make_huey(os.environ[DATABASE])
    consumed.task(name="noop")(nothing)
