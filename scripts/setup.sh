#!/usr/bin/env bash
# Makes .venv with this project installed. Run by itself, or sourced by the other scripts:
#   bash scripts/setup.sh [EXTRAS]       EXTRAS like "eval,train"; those installed before are kept
#   source scripts/setup.sh; install_project EXTRAS
# The second leaves the interpreter's path in $PYTHON, the checkout's in $KIMI_ROOT, and the folder
# as it was. From the environment:
#   KIMI_PYTHON   an interpreter that has the project already, to use instead of .venv: nothing is
#                 installed then
set -euo pipefail

KIMI_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
UV_VERSION=0.9.0

# A name on PATH is no proof: it may be a shim without an interpreter behind it, or too old.
python_is_new_enough() {
  "$1" -c 'import sys, venv; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1
}

# Prints the interpreter that KIMI_PYTHON names. From a folder of no importance: it must find the
# project from everywhere.
chosen_python() {
  local found
  if ! found=$(command -v "$KIMI_PYTHON") || ! python_is_new_enough "$found"; then
    echo "setup: KIMI_PYTHON: expected a Python of 3.12 or newer, found '$KIMI_PYTHON'" >&2
    return 1
  fi
  case $found in /*) ;; *) found=$PWD/$found ;; esac
  (cd / && "$found" -c 'import importlib.util as u, sys
sys.exit(None in map(u.find_spec, ("kimi", "jax")))') || {
    echo "setup: KIMI_PYTHON: expected a Python that has this project installed, found" \
      "'$KIMI_PYTHON', which has not: unset it, or $found -m pip install -e '$KIMI_ROOT'" >&2
    return 1
  }
  echo "$found"
}

find_python() {
  local candidate
  local -a candidates=(python3.13 python3.12 python3.14 python3 python)
  if [ -n "${KIMI_PYTHON:-}" ]; then
    chosen_python
    return
  fi
  for candidate in "${PYENV_ROOT:-${HOME:-}/.pyenv}"/versions/3.1[2-9]*/bin/python; do
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
    "Install one (for example 'pyenv install 3.13'), or put its folder on PATH." >&2
  return 1
}

# Prints the names in both lists, sorted. Refuses those that pyproject.toml does not have.
all_extras() {
  local name known
  known=$(sed -n '/^\[project.optional-dependencies\]/,/^$/s/^\([a-z]*\) = .*/\1/p' \
    "$KIMI_ROOT/pyproject.toml")
  for name in ${1//,/ }; do
    grep -qx -- "$name" <<<"$known" || {
      echo "setup: EXTRAS: expected some of $(paste -sd, - <<<"$known"), found '$name'" >&2
      return 1
    }
  done
  tr ', ' '\n' <<<"$1,$2" | sed '/^$/d' | LC_ALL=C sort -u | paste -sd, -
}

# uv keeps what it has downloaded below the home; where that cannot be written it would give up.
choose_uv_cache() {
  local cache=${UV_CACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/uv}
  if ! mkdir -p "$cache" 2>/dev/null || [ ! -w "$cache" ]; then
    export UV_CACHE_DIR=$KIMI_ROOT/.cache/uv
  fi
}

install_project() {
  local extras base stamp=$KIMI_ROOT/.venv/installed sources had="" had_sources=""
  if [ -n "${KIMI_PYTHON:-}" ]; then
    PYTHON=$(find_python)
    return
  fi
  PYTHON=$KIMI_ROOT/.venv/bin/python
  sources=$(cat "$KIMI_ROOT/pyproject.toml" "$KIMI_ROOT/requirements.lock" | cksum)
  if [ -x "$PYTHON" ] && [ -f "$stamp" ]; then
    read -r had had_sources <"$stamp"
  fi
  extras=$(all_extras "${1:-}" "${had#extras=}")
  if [ "$had $had_sources" = "extras=$extras $sources" ]; then
    return
  fi
  if [ ! -x "$PYTHON" ] || ! python_is_new_enough "$PYTHON"; then
    base=$(find_python)
    echo "setup: making .venv with $("$base" --version)" >&2
    rm -rf "$KIMI_ROOT/.venv"
    "$base" -m venv "$KIMI_ROOT/.venv"
  fi
  rm -f "$stamp" # until all is installed
  echo "setup: installing packages into .venv (a minute or two the first time)" >&2
  (cd "$KIMI_ROOT" && install_packages "$extras")
  echo "extras=$extras $sources" >"$stamp"
}

install_packages() {
  local -a wants=(--quiet --constraint requirements.lock --editable ".${1:+[$1]}")
  # uv resolves and unpacks in parallel. Where it cannot be had, or does not know the certificates
  # or mirrors that pip is set up for, plain pip does the same more slowly.
  "$PYTHON" -m pip install --quiet "uv>=$UV_VERSION" >/dev/null 2>&1 || true
  choose_uv_cache
  "$PYTHON" -m uv pip install --python "$PYTHON" "${wants[@]}" 2>/dev/null ||
    "$PYTHON" -m pip install --disable-pip-version-check --no-compile "${wants[@]}"
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  install_project "${1:-}"
  echo "setup: $PYTHON" >&2
fi
