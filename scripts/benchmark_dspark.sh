#!/usr/bin/env bash
# Measures DSpark decoding against plain decoding; the small K3 unless --model names another one.
#   bash scripts/benchmark_dspark.sh [options]      --help lists them
# On a pod slice every host runs the same command: through scripts/launch, or with --distributed
# where the platform tells jax of the other hosts.
set -euo pipefail
caller=$PWD
SCRIPTS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$SCRIPTS/setup.sh"
source "$SCRIPTS/launch/common.sh"
install_project "$(machine_extras eval)"
cd "$caller" # the names of files given are the caller's

exec "$PYTHON" -m kimi benchmark "$@"
