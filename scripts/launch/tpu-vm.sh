#!/usr/bin/env bash
# Runs a command on all hosts of a TPU VM slice, from any machine that reaches them.
#   KIMI_TPU=my-slice KIMI_ZONE=us-central1-c bash scripts/launch/tpu-vm.sh COMMAND...     gcloud
#   KIMI_HOSTS=host0,host1,host2,host3       bash scripts/launch/tpu-vm.sh COMMAND...     plain ssh
# COMMAND is that of host.sh. The output of host i stands behind "i| ". The first host that fails ends
# all others; the exit code is its code.
#
# From the environment, or from .env (or the file that KIMI_ENV_FILE names):
#   KIMI_DIR          the checkout on the hosts (kimi-k3-tpu, in the home directory)
#   KIMI_SSH          the ssh command, with options (ssh -tt -o BatchMode=yes -o ConnectTimeout=30);
#                     another user is "ssh -tt -l NAME"
#   all other KIMI_*  are given to host.sh, beside what the .env of the hosts says
set -euo pipefail
LAUNCH=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$LAUNCH/common.sh"
HERE_ONLY="KIMI_TPU KIMI_ZONE KIMI_DIR KIMI_SSH KIMI_ENV_FILE KIMI_HOST_INDEX"

find_hosts() {
  if [ -n "${KIMI_TPU:-}" ]; then
    [ -n "${KIMI_ZONE:-}" ] || say_and_fail "KIMI_ZONE: expected the zone of $KIMI_TPU, found none"
    command -v gcloud >/dev/null || say_and_fail "KIMI_TPU: expected gcloud on PATH, found none"
    KIMI_HOSTS=$(gcloud compute tpus tpu-vm describe "$KIMI_TPU" --zone "$KIMI_ZONE" \
      --format 'value(networkEndpoints[].ipAddress)' | tr ';' ',') && [ -n "$KIMI_HOSTS" ] ||
      say_and_fail "KIMI_TPU: gcloud knows no hosts of '$KIMI_TPU' in zone '$KIMI_ZONE'"
    export KIMI_HOSTS
  fi
  [ -n "${KIMI_HOSTS:-}" ] || say_and_fail "expected KIMI_TPU and KIMI_ZONE, or KIMI_HOSTS"
  split_hosts
}

# remote_command INDEX COMMAND...: one line for the shell of a host.
remote_command() {
  local index=$1 name
  shift
  printf 'cd %q && env KIMI_HOST_INDEX=%q' "${KIMI_DIR:-kimi-k3-tpu}" "$index"
  for name in $(compgen -e KIMI_ | sort); do
    [[ " $HERE_ONLY " == *" $name "* ]] || printf ' %s=%q' "$name" "${!name}"
  done
  printf ' bash scripts/launch/host.sh'
  printf ' %q' "$@"
}

# The terminal (-tt) makes the host's shell end when the connection does.
on_host() {
  local index=$1 line
  line=$(remote_command "$@")
  if [ -n "${KIMI_TPU:-}" ]; then
    exec gcloud compute tpus tpu-vm ssh "$KIMI_TPU" --zone "$KIMI_ZONE" --worker "$index" \
      --command "$line" -- -tt -o BatchMode=yes
  fi
  local -a ssh
  read -r -a ssh <<<"${KIMI_SSH:-ssh -tt -o BatchMode=yes -o ConnectTimeout=30}"
  exec "${ssh[@]}" "${HOSTS[$index]}" "$line"
}

# host INDEX COMMAND...: its output behind its number, and its exit code in a file.
host() {
  local code=0
  (on_host "$@") </dev/null 2>&1 | sed -u "s/^/$1| /" || code=$?
  echo "$code" >"$CODES/$1.new"
  mv "$CODES/$1.new" "$CODES/$1"
}

# Again and again, as a host may be about to start its ssh.
stop_all() {
  local pid
  while [ -n "$(jobs -pr)" ]; do
    for pid in $(jobs -pr); do
      pkill -TERM -P "$pid" 2>/dev/null || true # ssh, behind it
    done
    sleep 0.3
  done
}

# Waits until all hosts are done, or one has failed. Sets FAILED to its exit code, or to 0.
watch() {
  local i why=""
  while :; do
    local done=0
    FAILED=0
    for i in "${!HOSTS[@]}"; do
      [ -f "$CODES/$i" ] || continue
      done=$((done + 1))
      FAILED=$(cat "$CODES/$i")
      if [ "$FAILED" -ne 0 ]; then
        [ "$FAILED" -ne 255 ] || why=" (of ssh: look at what it says, and at KIMI_HOSTS)"
        echo "launch: host $i (${HOSTS[$i]}): exit code $FAILED$why: ending the others" >&2
        return
      fi
    done
    [ "$done" -lt "${#HOSTS[@]}" ] || return 0
    sleep 0.5
  done
}

[ $# -gt 0 ] || say_and_fail "COMMAND: expected one, found none"
read_env "$LAUNCH/../../.env"
find_hosts
CODES=$(mktemp -d)
trap 'rm -rf "$CODES"' EXIT
trap 'stop_all; exit 130' INT TERM HUP
for i in "${!HOSTS[@]}"; do
  host "$i" "$@" &
done
watch
[ "$FAILED" -eq 0 ] || stop_all
exit "$FAILED"
