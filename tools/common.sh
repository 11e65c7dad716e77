# shellcheck shell=bash
# Functions shared by the scripts of this folder. Sourced, never run. Changes to the top of the source tree.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
LOGS=build/logs
mkdir -p "$LOGS"

# Dependency mode of ccache: with an empty cache it costs less, as it uses the compiler's list of headers and runs no
# preprocessor.
export CCACHE_DEPEND=${CCACHE_DEPEND-1}

# A version whose attention backward is known to keep its fast path with fixed bits on Hopper; others may take cuDNN
# 9.25's slow one (github.com/NVIDIA/cudnn-frontend/pull/398).
cudnn_frontend_wheel() { echo 'nvidia-cudnn-frontend==1.32.0'; }

# The folder into which pip installs a newer meson, on systems whose own is too old.
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

# show_last_line LOG: shows the log's last line on one line of the terminal, until killed or until the script ends.
show_last_line() {
  while sleep 1 && kill -0 $$ 2>/dev/null; do printf '\r\e[K    %s' "$(tail -n 1 "$1" | cut -c 1-75)"; done
}

# run_logged LOG COMMAND...: writes the command's output to $LOGS/LOG and shows its last line on a terminal while it
# runs. If it fails, shows the end of the output and returns 1.
run_logged() {
  local log=$LOGS/$1 watcher='' status=0
  shift
  : >"$log"
  if [[ -t 1 ]]; then
    show_last_line "$log" &
    watcher=$!
  fi
  ("$@") >"$log" 2>&1 </dev/null || status=1
  if [[ $watcher ]]; then
    kill "$watcher"
    printf '\r\e[K'
  fi
  if ((status)); then
    tail -n 40 "$log" >&2
    printf 'error: "%s" failed; its whole output is in %s\n' "$*" "$log" >&2
  fi
  return "$status"
}

has_gpu() { compgen -G '/dev/nvidia[0-9]*' >/dev/null || nvidia-smi -L >/dev/null 2>&1; }

as_root() {
  if ((EUID == 0)); then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "this needs root, and there is no sudo: run it as root: $*"
  fi
}
