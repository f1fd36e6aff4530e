#!/usr/bin/env bash
# Installs everything into .venv, then lint, types and the tests; slow sweeps are not among them.
#   bash scripts/test.sh [--fast] [pytest arguments]      for example: bash scripts/test.sh -k codecs
# --fast runs the quick tests only: those of one process, without interpreted or compiled kernels.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
install_project dev,tpu,train,eval
cd "$KIMI_ROOT"

export JAX_PLATFORMS=cpu TPU_SKIP_MDS_QUERY=1
"$PYTHON" -m ruff check .
"$PYTHON" -m ruff format --check .
"$PYTHON" -m mypy
# A file's tests share compiled programs: they stay in one worker.
run() { # pytest's 5 is "no test was selected", as -k may do in one of the two runs
  "$PYTHON" -m pytest -n "${KIMI_TEST_WORKERS:-2}" --dist loadfile --durations 15 "$@" || [ $? -eq 5 ]
}
if [ "${1:-}" = --fast ]; then
  run -m "not slow and not full" "${@:2}"
  exit
fi
run --ignore tests/interpret "$@"
# Several ranks in the interpreters need virtual devices, whose number is settled before jax starts.
export XLA_FLAGS="--xla_force_host_platform_device_count=8 ${XLA_FLAGS:-}"
run tests/interpret "$@"
