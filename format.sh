#!/usr/bin/env bash
# The one gate: format, lint, types, architecture. --check changes nothing and fails on the first difference.
set -euo pipefail
cd "$(dirname "$0")"
if [ "${1:-}" = "--check" ]; then
  ruff format --check .
  ruff check .
else
  ruff format .
  ruff check --fix .
fi
mypy
python -m pytest -q tests/architecture
