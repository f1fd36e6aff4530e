#!/usr/bin/env bash
# Functions of the launchers; sourced by them.

# say_and_fail MESSAGE: one line on stderr, exit code 2 as of every bad input.
say_and_fail() {
  echo "launch: $*" >&2
  exit 2
}

# The extras of setup.sh that this machine needs, after those given: the compiler where TPUs are.
machine_extras() {
  local devices
  devices=$(compgen -G "/dev/accel*"; compgen -G "/dev/vfio/[0-9]*")
  echo "$1${devices:+,tpu}"
}

# load_env FILE: sets its variables where they are not set yet. Lines are NAME=VALUE, blank, or begin
# with #; a value may stand in one pair of quotes. Nothing in it is executed.
load_env() {
  local line name value number=0
  while IFS= read -r line || [ -n "$line" ]; do
    number=$((number + 1))
    line=${line%$'\r'}
    if [[ $line =~ ^[[:space:]]*(#.*)?$ ]]; then continue; fi
    [[ $line =~ ^[[:space:]]*(export[[:space:]]+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)$ ]] ||
      say_and_fail "$1: line $number: expected NAME=VALUE"
    name=${BASH_REMATCH[2]} value=${BASH_REMATCH[3]}
    if [[ $value =~ ^\"(.*)\"$ || $value =~ ^\'(.*)\'$ ]]; then value=${BASH_REMATCH[1]}; fi
    [ -n "${!name+set}" ] || export "$name=$value"
  done <"$1"
}
