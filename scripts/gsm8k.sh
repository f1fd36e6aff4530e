#!/usr/bin/env bash
# Installs the library into .venv, then scores GSM8K: without options the questions shipped, with the
# small K3.
#   bash scripts/gsm8k.sh [options of eval/gsm8k.py]     for example: --hub --model /data/Kimi-K3
set -euo pipefail
SCRIPTS=$(dirname "${BASH_SOURCE[0]}")
source "$SCRIPTS/setup.sh"
source "$SCRIPTS/launch/common.sh"
install_project "$(machine_extras eval)"
exec "$PYTHON" "$KIMI_ROOT/eval/gsm8k.py" "$@"
