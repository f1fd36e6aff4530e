#!/usr/bin/env bash
# Installs the library into .venv, then scores GPQA-Diamond. The data is gated: accept its conditions
# on the hub and set HF_TOKEN, or give a copy with --data.
#   bash scripts/gpqa.sh [options of eval/gpqa.py]       for example: --model /data/Kimi-K3
set -euo pipefail
SCRIPTS=$(dirname "${BASH_SOURCE[0]}")
source "$SCRIPTS/setup.sh"
source "$SCRIPTS/launch/common.sh"
install_project "$(machine_extras eval)"
exec "$PYTHON" "$KIMI_ROOT/eval/gpqa.py" "$@"
