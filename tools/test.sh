#!/usr/bin/env bash
# Builds with warnings as errors and runs the tests; then builds with AddressSanitizer and UndefinedBehaviorSanitizer
# and runs the fast ones again. The last line counts both: "N passed, N failed, N skipped".
#   tools/test.sh                  the fast tests and the slow ones: the quickstart, and Slurm if it is installed
#   tools/test.sh --suite fast     the fast tests only
#   tools/test.sh --suite full     also all cases of the fast tests, which by default run one of each kind, in both
#                                  builds, and tests that take hours: the product of all layouts, meshes over TCP and
#                                  MPI, and many rounds of killed ranks
#   tools/test.sh --no-sanitize    without the second build
set -euo pipefail
source "$(dirname "$0")/common.sh"

usage() { die "usage: tools/test.sh [--suite fast|slow|full] [--no-sanitize]"; }

suite=slow sanitize=yes
while (($#)); do
  case "$1" in
    --suite)
      [[ ${2:-} =~ ^(fast|slow|full)$ ]] || usage
      suite=$2
      shift
      ;;
    --no-sanitize) sanitize=no ;;
    *) usage ;;
  esac
  shift
done

failed_builds=0
test_logs=()

# configure BUILD OPTION...: sets up the build folder, or changes the options of an existing one.
configure() {
  local build=$1
  shift
  if [[ -f $build/build.ninja ]]; then
    run_logged "$build-configure.log" meson setup --reconfigure "$build" "$@"
  else
    run_logged "$build-configure.log" meson setup "$build" "$@"
  fi
}

# build BUILD all|needed "SUITE..." OPTION...: builds the targets of the tests; all: also what is built by default.
build() {
  local build=$1 what=$2 suites=$3 targets
  shift 3
  configure "$build" "$@" || return 1
  # shellcheck disable=SC2086  # several suites
  mapfile -t targets < <(python3 tools/test_targets.py "$what" "$build" $suites)
  run_logged "$build-build.log" ninja -C "$build" -k 0 -j "$(nproc)" "${targets[@]}"
}

# run_tests BUILD "SUITE..." TIMEOUT_MULTIPLIER
run_tests() {
  local build=$1 suites=$2 multiplier=$3 suite options=()
  for suite in $suites; do options+=(--suite "$suite"); done
  say "testing in $build/ (suites: $suites)"
  rm -f "$build/meson-logs/testlog.json"
  # Runs two more tests than there are cores, as many wait for processes, clocks and disks. A failing test is counted
  # from the log below, so that the second build is still tested.
  meson test -C "$build" --no-rebuild --print-errorlogs --timeout-multiplier "$multiplier" \
    --num-processes $(($(nproc) + 2)) "${options[@]}" </dev/null || true
  test_logs+=("$build/meson-logs/testlog.json")
}

build_sanitized() {
  # Compiles in half the time of -O2 -g, still with line numbers in stack traces. Null checks are off: reading a null
  # pointer ends the program anyway, and they would take a quarter of the compile time.
  # Checks of every access through a pointer take another quarter of the compile time, and AddressSanitizer sees most of
  # the same faults: only the suite full has them. It also compiles all objects with sanitizers; the other suites take
  # those of the tests, and of rooms that only compute, from the first build.
  local unchecked=null plain=
  if [[ $suite != full ]]; then
    unchecked+=,alignment,object-size,pointer-overflow,vptr,nonnull-attribute
    [[ -z $built ]] || plain=$PWD/build
  fi
  build build-asan needed "$sanitized_suites" -Doptimization=1 -Ddebug=false -Dtests=true -Dcuda=disabled \
    -Db_sanitize=address,undefined -Db_lundef=false -Dfolders_as_units=true "-Dplain_build=$plain" \
    "-Dcpp_args=-g1 -fno-sanitize=$unchecked -fno-sanitize-recover=all"
}

case "$suite" in
  fast) suites=fast sanitized_suites=fast ;;
  slow) suites='fast slow' sanitized_suites=fast ;;
  full) suites='fast whole slow full' sanitized_suites='fast whole' ;;
esac
# Without a GPU no kernel runs: it is enough to compile all of them for one architecture, the newest, and to see that
# they compile for the oldest.
kernels=('-Dsm_archs=80,90a' -Dunoptimized_ptx=false)
has_gpu || kernels=('-Dsm_archs=90a' -Dunoptimized_ptx=true)

# Waiting threads must not use the cores on which other tests run.
export OMP_WAIT_POLICY=passive

if [[ $suite == full ]]; then
  bash tools/setup.sh --tests --full
else
  bash tools/setup.sh --tests
fi

say "building in build/"
built=yes
build build all "$suites" "${kernels[@]}" -Dbuildtype=release -Dtests=true -Dwerror=true -Dcuda=auto -Dfolders_as_units=true || built=
if [[ $sanitize == yes ]]; then
  # Takes only time of the processors that tests of the first build leave, as many of them wait.
  say "building in build-asan/, with the lowest priority"
  (
    renice -n 19 -p "$BASHPID" >/dev/null
    build_sanitized
  ) </dev/null >/dev/null &
  sanitized_build=$!
fi
if [[ $built ]]; then run_tests build "$suites" 1; else failed_builds=$((failed_builds + 1)); fi

if [[ $sanitize == yes ]]; then
  export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1}
  export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
  export LSAN_OPTIONS=${LSAN_OPTIONS:-suppressions=$PWD/tests/lsan.supp:print_suppressions=0}
  if wait "$sanitized_build"; then run_tests build-asan "$sanitized_suites" 10; else failed_builds=$((failed_builds + 1)); fi
fi

python3 tools/count_tests.py --failed-builds "$failed_builds" "${test_logs[@]}"
