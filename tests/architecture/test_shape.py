"""No hidden state, no hidden configuration, nothing too long to read."""

from __future__ import annotations

import ast
import re

from tests.architecture.source import FUNCTIONS, NODES, PACKAGE, TREES

READS_ENVIRONMENT = {
    "settings.py": "the one place for settings",
    "node/agent.py": "stands alone on a node; makes the environment of a scheduler",
    "node/job_start.py": "stands alone on a node; makes the environment of a job",
    "runners/local.py": "makes the environment of a command",
    "executor/__main__.py": "tells setproctitle, before it is imported, to leave the environment block alone",
    "server/__main__.py": "the same",
    "serve.py": "the same",
    "pool/children.py": "makes the environment of serve's own children",
    "logsetup.py": "whether a child logs to the terminal, as serve told it",
    "executor/baseline.py": "puts back what an operation changed",
    "executor/child_start.py": "makes the environment of a tail",
}
MUTABLE = re.compile(r"(\w+\.)*(list|dict|set|deque|defaultdict|Counter|Lock|RLock|Event|Queue|SimpleQueue|local)\(")
CHANGE = re.compile(
    r"[A-Z][A-Z_]+(\[.*\] = |\.(append|add|update|pop|clear|setdefault|extend|remove|insert|discard)\()"
)


def test_no_module_level_mutable_state() -> None:
    faults = [f"{path}:{node.lineno} global" for path, node in NODES if isinstance(node, ast.Global)]
    for path, statement in ((path, statement) for path, tree in TREES.items() for statement in tree.body):
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value:
            value = ast.unparse(statement.value)
            # A table in capitals is a constant, as long as nothing changes it.
            is_constant = re.match(r"[A-Z_]+\b|__all__", ast.unparse(statement)) is not None
            if MUTABLE.match(value) or (value.startswith(("[", "{")) and not is_constant):
                faults.append(f"{path}:{statement.lineno} {ast.unparse(statement)[:60]}")
    for path, node in NODES:
        if isinstance(node, ast.Expr | ast.Assign) and CHANGE.match(ast.unparse(node)):
            faults.append(f"{path}:{node.lineno} {ast.unparse(node)[:60]}")
    assert faults == []


def test_files_and_functions_stay_small() -> None:
    assert [path for path in TREES if len((PACKAGE / path).read_text().splitlines()) > 400] == []
    sizes = [(path, function.name, (function.end_lineno or 0) - function.lineno + 1) for path, function in FUNCTIONS]
    assert [size for size in sizes if size[2] > 40] == []


def test_only_settings_reads_the_environment() -> None:
    reads = {path for path, node in NODES if re.match(r"os\.(environ|getenv)$|from os import", ast.unparse(node))}
    assert sorted(reads - set(READS_ENVIRONMENT)) == []
