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

# read_env FILE: loads the file that KIMI_ENV_FILE names, or else FILE if it is there.
read_env() {
  [ -z "${KIMI_ENV_FILE:-}" ] || [ -f "$KIMI_ENV_FILE" ] ||
    say_and_fail "KIMI_ENV_FILE: $KIMI_ENV_FILE: no such file"
  local file=${KIMI_ENV_FILE:-$1}
  [ ! -f "$file" ] || load_env "$file"
}

# split_hosts: KIMI_HOSTS into the array HOSTS. One machine may be several hosts in tests only.
split_hosts() {
  local name='[A-Za-z0-9:][A-Za-z0-9._:-]*' twice
  [[ $KIMI_HOSTS =~ ^$name(,$name)*$ ]] ||
    say_and_fail "KIMI_HOSTS: expected names with a comma and no space between them," \
      "found '${KIMI_HOSTS//$'\n'/ }'"
  IFS=, read -r -a HOSTS <<<"$KIMI_HOSTS"
  twice=$(printf '%s\n' "${HOSTS[@]}" | sort | uniq -d | sed -E '/^(localhost|127\..*|::1)$/d')
  [ -z "$twice" ] || say_and_fail "KIMI_HOSTS: expected every host once, found '${twice%%$'\n'*}' twice"
}

# number NAME LEAST MOST: checks the value of a variable.
number() {
  [[ ${!1:-} =~ ^(0|[1-9][0-9]{0,5})$ ]] && [ "${!1}" -ge "$2" ] && [ "${!1}" -le "$3" ] ||
    say_and_fail "$1: expected $2 to $3, found '${!1:-}'"
}

# at HOST PORT: an IPv6 address stands in brackets.
at() {
  case $1 in
    *:*) echo "[$1]:$2" ;;
    *) echo "$1:$2" ;;
  esac
}
