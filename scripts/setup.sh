#!/usr/bin/env bash
# Makes .venv with this project installed. Sourced by the other scripts:
#   source scripts/setup.sh; install_project EXTRAS      (EXTRAS like "dev,tpu", or "")
# Leaves the interpreter's path in $PYTHON. Set KIMI_PYTHON to choose the interpreter yourself.
set -euo pipefail

KIMI_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
UV_VERSION=0.9.0

# A name on PATH is no proof: it may be a shim without an interpreter behind it, or too old.
python_is_new_enough() {
  "$1" -c 'import sys, venv; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1
}

find_python() {
  local candidate
  local -a candidates=()
  [ -n "${KIMI_PYTHON:-}" ] && candidates+=("$KIMI_PYTHON")
  candidates+=(python3.13 python3.12 python3.14 python3 python)
  for candidate in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9]*/bin/python; do
    candidates+=("$candidate")
  done
  for candidate in "${candidates[@]}"; do
    if python_is_new_enough "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  if command -v uv >/dev/null; then
    # uv finds interpreters of its own, and downloads one where it is allowed to.
    if candidate=$(uv python find --quiet '>=3.12' 2>/dev/null) ||
      { uv python install --quiet 3.13 >&2 && candidate=$(uv python find --quiet '>=3.12'); }; then
      echo "$candidate"
      return
    fi
  fi
  echo "setup: Python 3.12 or newer: not found on PATH, among pyenv's versions or through uv." \
    "Install one (for example 'pyenv install 3.13'), or set KIMI_PYTHON to its path." >&2
  return 1
}

install_project() {
  local extras=$1 base stamp wanted
  cd "$KIMI_ROOT"
  PYTHON=$KIMI_ROOT/.venv/bin/python
  stamp=.venv/installed
  wanted="extras=$extras $(cat pyproject.toml requirements.lock | cksum)"
  if [ -x "$PYTHON" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    return
  fi
  if [ ! -x "$PYTHON" ] || ! python_is_new_enough "$PYTHON"; then
    base=$(find_python)
    echo "setup: making .venv with $("$base" --version)" >&2
    rm -rf .venv
    "$base" -m venv .venv
  fi
  echo "setup: installing packages into .venv (a minute or two the first time)" >&2
  local -a wants=(--quiet --constraint requirements.lock --editable ".${extras:+[$extras]}")
  # uv resolves and unpacks in parallel. Where it cannot be had, or does not know the certificates
  # or mirrors that pip is set up for, plain pip does the same more slowly.
  "$PYTHON" -m pip install --quiet "uv>=$UV_VERSION" >/dev/null 2>&1 || true
  "$PYTHON" -m uv pip install --python "$PYTHON" "${wants[@]}" 2>/dev/null ||
    "$PYTHON" -m pip install --disable-pip-version-check "${wants[@]}"
  echo "$wanted" >"$stamp"
}
