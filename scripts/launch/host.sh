#!/usr/bin/env bash
# Runs a command as the one process of this host of a slice; every launcher starts it on every host.
#   KIMI_HOSTS=host0,host1,host2,host3 KIMI_HOST_INDEX=0 bash scripts/launch/host.sh COMMAND...
# COMMAND begins with a script (eval/gsm8k.py, scripts/x.sh), with "kimi" for python -m kimi, or with
# any program.
#
# From the environment, or from .env (or the file that KIMI_ENV_FILE names):
#   KIMI_HOSTS        all hosts, comma-separated, in the order of their place in the slice
#   KIMI_HOST_INDEX   which of them this is
#   KIMI_PORT         of host 0, for the hosts to find each other (8476)
#   KIMI_JOIN_SECONDS how long the hosts wait for each other (60)
#   KIMI_LOGS         folder of the logs (build/logs): host-INDEX.log, and host-INDEX.rc at the end
#   KIMI_PREFLIGHT    options of `kimi doctor`, which runs first, unless it is COMMAND; "off" leaves
#                     it out
#   KIMI_PYTHON       as in setup.sh: an interpreter that has the project already, to use instead of
#                     .venv, which is installed if need be
# The exit code is the command's; 2 if the launch itself is wrong or the preflight fails.
set -euo pipefail
LAUNCH=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$LAUNCH/../.." && pwd)
source "$LAUNCH/common.sh"
cd "$ROOT"

# The slice: 2x2x4 chips, four hosts of 2x2x1 chips along z, two cores (devices) a chip.
SLICE_HOSTS=4 HOST_GRID=1,1,4 CHIPS_OF_HOST=2,2,1 TPU_PORT=8479
CHILD="" TEE=""

read_environment() {
  read_env .env
  [ -n "${KIMI_HOSTS:-}" ] || say_and_fail "KIMI_HOSTS: expected host names, found none"
  split_hosts
  export KIMI_HOSTS KIMI_HOST_COUNT=${#HOSTS[@]} KIMI_HOST_INDEX KIMI_COORDINATOR
  number KIMI_HOST_INDEX 0 $((KIMI_HOST_COUNT - 1))
  : "${KIMI_PORT:=8476}"
  number KIMI_PORT 1 65535
  [ "$KIMI_PORT" -ne "$TPU_PORT" ] || say_and_fail "KIMI_PORT: $TPU_PORT is libtpu's: choose another"
  KIMI_COORDINATOR=$(at "${HOSTS[0]}" "$KIMI_PORT")
}

# libtpu learns the shape of the slice from its platform; where that is silent (bare nodes), from
# these. What is set already is left alone.
set_process_bounds() {
  [ "$KIMI_HOST_COUNT" -eq "$SLICE_HOSTS" ] || return 0
  local host addresses=""
  for host in "${HOSTS[@]}"; do
    addresses+=,$(at "$host" "$TPU_PORT")
  done
  export TPU_PROCESS_BOUNDS=${TPU_PROCESS_BOUNDS:-$HOST_GRID}
  export TPU_CHIPS_PER_PROCESS_BOUNDS=${TPU_CHIPS_PER_PROCESS_BOUNDS:-$CHIPS_OF_HOST}
  export TPU_PROCESS_ADDRESSES=${TPU_PROCESS_ADDRESSES:-${addresses:1}}
  export TPU_PROCESS_PORT=${TPU_PROCESS_PORT:-$TPU_PORT}
  export CLOUD_TPU_TASK_ID=${CLOUD_TPU_TASK_ID:-$KIMI_HOST_INDEX}
  export TPU_WORKER_ID=${TPU_WORKER_ID:-$KIMI_HOST_INDEX}
  export TPU_WORKER_HOSTNAMES=${TPU_WORKER_HOSTNAMES:-$KIMI_HOSTS}
}

# Everything that is printed from here on is in this host's log too, and its last line on the
# screen is the exit code.
start_log() {
  local logs=${KIMI_LOGS:-build/logs}
  case $logs in
    /*) [ -d "$(dirname "$logs")" ] || say_and_fail "KIMI_LOGS: $(dirname "$logs"): no such folder" ;;
  esac
  mkdir -p "$logs" 2>/dev/null && [ -w "$logs" ] ||
    say_and_fail "KIMI_LOGS: expected a folder that can be written, found '$logs'"
  LOG=$logs/host-$KIMI_HOST_INDEX.log
  rm -f "${LOG%.log}.rc"
  exec 3>&2
  exec > >(trap '' HUP INT TERM; exec tee "$LOG") 2>&1 # outlives what it logs
  TEE=$!
  trap finish EXIT
  trap 'stop 143' TERM
  trap 'stop 129' HUP
  trap 'stop 130' INT
}

finish() {
  local code=$?
  exec >&3 2>&3 # the log gets its end
  gone "$TEE" || true
  echo "$code" >"${LOG%.log}.rc"
  echo "launch: host $KIMI_HOST_INDEX: exit code $code, log $LOG" >&3
}

# A launcher that stops this script means its command.
stop() {
  trap '' TERM HUP INT
  if [ -n "$CHILD" ]; then
    kill -TERM "$CHILD" 2>/dev/null || true
    gone "$CHILD" || kill -KILL "$CHILD" 2>/dev/null || true
  fi
  exit "$1"
}

# Waits up to 10 s until a child is gone. Not by `wait`: inside a trap that has interrupted another
# `wait` for the same child it may never return.
gone() {
  local i
  for ((i = 0; i < 100; i++)); do
    kill -0 "$1" 2>/dev/null || return 0
    sleep 0.1
  done
  return 1
}

# run COMMAND...: in the background, as bash handles signals only between commands.
run() {
  local -a command=("$@")
  case $1 in
    kimi) command=("$PYTHON" -m "$@") ;;
    *.py) command=("$PYTHON" "$@") ;;
    *.sh) command=(bash "$@") ;;
  esac
  echo "launch: host $KIMI_HOST_INDEX of $KIMI_HOST_COUNT ($(hostname)): $*"
  "${command[@]}" &
  CHILD=$!
  wait "$CHILD"
  CHILD=""
}

# Hosts that share the checkout take turns.
find_interpreter() {
  if [ -n "${KIMI_PYTHON:-}" ]; then
    PYTHON=$(bash -c 'source scripts/setup.sh; find_python') || exit 2
    return
  fi
  PYTHON=$ROOT/.venv/bin/python
  mkdir -p build
  # shellcheck disable=SC2016  # for the inner shell
  run flock build/setup.lock bash -c 'source scripts/setup.sh; install_project "$1"' setup \
    "$(machine_extras eval)"
}

[ $# -gt 0 ] || say_and_fail "COMMAND: expected one, found none"
read_environment
set_process_bounds
start_log
find_interpreter
if [ "${KIMI_PREFLIGHT:-}" != off ] && [ "$1 ${2:-}" != "kimi doctor" ]; then
  read -r -a preflight <<<"${KIMI_PREFLIGHT:-}"
  run kimi doctor "${preflight[@]}"
fi
run "$@"
