#!/usr/bin/env bash
# Installs the library into .venv and decodes a prompt with the small K3 that ships with it.
#   bash scripts/quickstart.sh ["a prompt of your own"]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
install_project ""

prompt=${1:-"Mia has 3 boxes with 7 apples in each. She gives 5 apples to Tom. How many apples does Mia have left?"}
exec "$PYTHON" -m kimi generate --compare "$prompt"
