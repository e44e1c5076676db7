"""The package's source, parsed once for the architecture tests."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent.parent / "skyserve_exec"
TREES = {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
NODES = [(path, node) for path, tree in TREES.items() for node in ast.walk(tree)]
FUNCTIONS = [(path, node) for path, node in NODES if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
