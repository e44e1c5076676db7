"""Imports every operation once, so that executors find them in memory they share with the spawner.

Room: spawner, before its first fork. pydantic is imported only where own operations are asked for, by importing
own_operations by name: the built-in ones need none, and an executor's memory is paid once per process.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from skyserve_exec.operation_table import BUILTIN, Operation

ENTRY_POINT_GROUP = "skyserve_exec.operations"


@dataclass(frozen=True, slots=True)
class LoadedOperation:
    """An operation that can be called with the fields of its payload."""

    operation: Operation
    call: Callable[[dict[str, Any]], object]


@dataclass(frozen=True, slots=True)
class LoadedOperations:
    """All operations by name."""

    by_name: Mapping[str, LoadedOperation]

    def describe_own(self) -> list[dict[str, Any]]:
        """The own operations as JSON, for http."""
        return [item.operation.describe() for item in self.by_name.values() if item.operation.is_own]


def load(modules: tuple[str, ...]) -> LoadedOperations:
    """Imports the built-in operations and the own ones of `modules` and of the entry-point group.

    Raises:
        BadInput: a module cannot be imported, holds no operation, or names one twice.
    """
    loaded = {row.name: LoadedOperation(row, _builtin_call(row)) for row in BUILTIN}
    wanted = modules + tuple(point.module for point in metadata.entry_points(group=ENTRY_POINT_GROUP))
    if wanted:
        own = importlib.import_module("skyserve_exec.executor.own_operations")
        loaded |= own.load(wanted, frozenset(loaded))
    return LoadedOperations(loaded)


def _builtin_call(row: Operation) -> Callable[[dict[str, Any]], object]:
    module, _, name = row.function.partition(":")
    function = getattr(importlib.import_module(module), name)
    return lambda payload: function(**payload)
