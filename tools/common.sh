# shellcheck shell=bash
# What the scripts of this folder share; sourced, never run. Changes to the top of the source tree.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
LOGS=build/logs
mkdir -p "$LOGS"

# Where pip puts a newer meson, on systems whose own is too old.
PATH="$PATH:${HOME:-}/.local/bin"

# Ubuntu 22.04's default compiler is too old; a newer one installed beside it is used instead.
if [[ -z ${CXX:-} ]] && command -v g++ g++-12 >/dev/null && (($(g++ -dumpversion | cut -d. -f1) < 12)); then
  export CC=gcc-12 CXX=g++-12
fi

bold='' plain=''
if [[ -t 1 ]]; then bold=$'\e[1m' plain=$'\e[0m'; fi

say() { printf '%s==> %s%s\n' "$bold" "$*" "$plain"; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# run_logged LOG COMMAND...: keeps the command's output in $LOGS/LOG; if it fails, shows the end of it and returns 1.
run_logged() {
  local log=$LOGS/$1
  shift
  if ! ("$@") >"$log" 2>&1 </dev/null; then
    tail -n 40 "$log" >&2
    printf 'error: "%s" failed; its whole output is in %s\n' "$*" "$log" >&2
    return 1
  fi
}

as_root() {
  if ((EUID == 0)); then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "this needs root, and there is no sudo: run it as root: $*"
  fi
}
