"""The shape of the code: a folder is a place where code runs, and here is what it may import."""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.source import FUNCTIONS, TREES

# Folders, and the front doors at the root. All may import the root nouns, which import nothing but each other.
MAY_IMPORT = """
    system, store, node:
    runners: system
    operations: store, runners, system
    executor: operations, store, system
    pool, server: store, system
    client: system
    serve.py: pool, store, system
    __main__.py: client
"""
# What an executor imports is paid by every operation: these libraries belong to http and the clients.
HEAVY = {"pydantic", "httpx2", "fastapi", "starlette", "uvicorn", "typer", "rich", "prometheus_client"}
MAY_BE_HEAVY = {
    "protocol.py": "models of what HTTP takes; only server and client import it",
    "executor/own_operations.py": "models from the signatures of own operations; imported only when there are any",
}


def imported(tree: ast.AST) -> Iterator[str]:
    """Dotted names; `from package import module` names the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(path: str) -> set[str]:
    """The files of the package that a file imports."""
    found = set()
    for name in imported(TREES[path]):
        stem = name.removeprefix("skyserve_exec.").replace(".", "/")
        choices = (f"{stem}.py", f"{stem}/__init__.py", f"{Path(stem).parent}.py", f"{Path(stem).parent}/__init__.py")
        found |= set([file for file in choices if name.startswith("skyserve_exec.") and file in TREES][:1])
    return found - {path}


def test_folders_import_only_what_they_may() -> None:
    rows = [[set(re.findall(r"[\w.]+", part)) for part in row.split(":")] for row in MAY_IMPORT.strip().splitlines()]
    edges = [(path, file) for path in TREES for file in own_imports(path) if "/" in file]
    may = {(room, target) for rooms, targets in rows for room in rooms for target in targets | {room}}
    assert [edge for edge in edges if (edge[0].split("/")[0], edge[1].split("/")[0]) not in may] == []


def test_heavy_libraries_stay_in_http_and_clients() -> None:
    light = [path for path in TREES if path not in MAY_BE_HEAVY and path.split("/")[0] not in {"server", "client"}]
    heavy = [f"{path}: {name}" for path in light for name in imported(TREES[path]) if name.split(".")[0] in HEAVY]
    assert heavy + [path for path in light if "protocol.py" in own_imports(path)] == []


def test_no_import_cycles_no_late_imports_and_no_third_folder_level() -> None:
    tuple(graphlib.TopologicalSorter({path: own_imports(path) for path in TREES}).static_order())
    assert [f"{path}:{function.name}" for path, function in FUNCTIONS if any(imported(function))] == []
    assert [path for path in TREES if path.count("/") > 1] == []
