"""The tables: requests (written by serve alone) and clusters (written by executors). Blocking; stdlib sqlite3.

Room: serve (RequestStore), http (RequestReader, in threads), executors (ClusterRegistry).
"""

from __future__ import annotations

from skyserve_exec.store.clusters import ClusterRegistry, ClusterRow, ClusterStatus
from skyserve_exec.store.request_reader import Holder, ListQuery, Page, RequestReader, Waiting
from skyserve_exec.store.requests import RequestStore

__all__ = [
    "ClusterRegistry",
    "ClusterRow",
    "ClusterStatus",
    "Holder",
    "ListQuery",
    "Page",
    "RequestReader",
    "RequestStore",
    "Waiting",
]
