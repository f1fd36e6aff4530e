#!/usr/bin/env bash
# Installs everything into .venv, then lint, types and the whole test suite.
#   bash scripts/test.sh [pytest arguments]      for example: bash scripts/test.sh -k codecs
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
install_project dev,tpu,train,eval

export JAX_PLATFORMS=cpu TPU_SKIP_MDS_QUERY=1
"$PYTHON" -m ruff check .
"$PYTHON" -m ruff format --check .
"$PYTHON" -m mypy
"$PYTHON" -m pytest -m "not slow" -n "${KIMI_TEST_WORKERS:-2}" "$@"
