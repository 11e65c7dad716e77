#!/usr/bin/env bash
# Checks the CUDA backend on a machine with a GPU: builds it in build-cuda/, runs its tests, then the benches, beside
# PyTorch where python3 has it, and ends with one table. Installs nothing, needs no network, takes under 10 minutes on
# 16 cores. What fails does not stop what comes after it; what cannot run is "skipped", with the reason. Exits 1 if
# anything failed, a mark of the table included. One log of all parts, written as they run, rows.tsv and table.txt are
# in $OUT, or, where that is not set, in build-cuda/gpu-check/, which has each part's log too.
#   tools/gpu_check.sh               everything, what is to be known first first
#   tools/gpu_check.sh --quick       no benches
#   tools/gpu_check.sh --no-build    takes what build-cuda/ holds
#   tools/gpu_check.sh --no-tests    benches only: with --no-build, where one call left no time for them
#   GPU_CHECK_SECONDS=N              the time that it takes at most (570)
set -euo pipefail
source "$(dirname "$0")/common.sh"

quick=no build=yes tests=yes
while (($#)); do
  case "$1" in
    --quick) quick=yes ;;
    --no-build) build=no ;;
    --no-tests) tests=no ;;
    *) die "usage: tools/gpu_check.sh [--quick] [--no-build] [--no-tests]" ;;
  esac
  shift
done

folder="build-cuda"
LOGS="$folder/gpu-check"
results=${OUT:-$LOGS}
rows=$results/rows.tsv
budget=${GPU_CHECK_SECONDS:-570}
mkdir -p "$LOGS" "$results"
: >"$rows"
rm -f "$results/gpu-check.log"
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
SECONDS=0
toolkit=${CUDA_PATH:-${CUDA_HOME:-/usr/local/cuda}}
PATH=$PATH:$toolkit/bin

# What a process has printed before it hangs is in its log.
by_lines=()
if command -v stdbuf >/dev/null; then by_lines=(stdbuf -oL); fi

left() { echo $((budget - SECONDS)); }
row() { printf '%s\t%s\t%s\t%s\t%s\n' "$@" >>"$rows"; }

failed_rows() { grep -c $'\tfail$' "$rows" 2>/dev/null || true; }

skip() { # NAME REASON
  say "$1: skipped: $2"
  row "$1" '' '' "$2" skipped
}

# part NAME LOG SECONDS COMMAND...: runs it for that long at most, with its output in LOG, says how it ended and adds
# its row, unless it has itself added rows that say what failed. Returns 1 if it did not pass. 77 is what a test ends
# with that cannot run here. The output goes line by line to the log of all parts: what ends this script does not take
# it along.
part() {
  local name=$1 log=$LOGS/$2 limit=$3 start=$SECONDS status=0 outcome before all=$results/gpu-check.log from
  shift 3
  rm -f "$log"
  if (($(left) < limit)); then limit=$(left); fi
  if ((limit <= 0)); then
    skip "$name" 'no time was left'
    return 1
  fi
  before=$(failed_rows)
  echo "==== $name" >>"$all"
  from=$(wc -c <"$all")
  timeout --kill-after=10 "$limit" "${by_lines[@]}" "$@" >>"$all" 2>&1 </dev/null || status=$?
  tail -c "+$((from + 1))" "$all" >"$log"
  echo "==== $name: exit $status after $((SECONDS - start)) s" >>"$all"
  case $status in
    0) outcome=pass ;;
    77)
      outcome=$(tail -n 1 "$log")
      skip "$name" "${outcome#skipped: }"
      return 1
      ;;
    124 | 137)
      outcome=fail
      echo "gpu_check: ended after $limit s" >>"$log"
      ;;
    *) outcome=fail ;;
  esac
  say "$name: $outcome ($((SECONDS - start)) s, log: $log)"
  if [[ $outcome == pass || $(failed_rows) == "$before" ]]; then
    row "$name" "$((SECONDS - start))" s "exit 0" "$outcome"
  fi
  if [[ $outcome == fail ]]; then
    tail -n 25 "$log" | cut -c1-200
    return 1
  fi
}

# Where a library's wheel keeps NAME.so*, one file per line: PyTorch brings those that the toolkit may lack.
wheel_libraries() {
  python3 - "$1" <<'PYTHON'
import glob, importlib.util, sys
spec = importlib.util.find_spec("nvidia")
for folder in spec.submodule_search_locations if spec else []:
    print(*sorted(glob.glob(f"{folder}/*/lib/lib{sys.argv[1]}.so*")), sep="\n")
PYTHON
}

# Makes the loader find the toolkit's libraries, and loader and compiler those that it lacks, among the wheels: a
# wheel has no file of the name that the linker looks for, so a link of that name is made here.
find_libraries() {
  local name header library links=$PWD/$folder/links
  mkdir -p "$links"
  export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$toolkit/lib64
  for name in cublasLt cudnn nvrtc; do
    header=$name.h
    printf '#include <%s>\nint main() {}\n' "$header" >"$links/probe.cu"
    nvcc "$links/probe.cu" -l"$name" -o "$links/probe" >"$LOGS/probe-$name.log" 2>&1 && continue
    library=$(wheel_libraries "$name" | sed -n '/./{p;q}') || true
    [[ -n $library ]] || continue
    ln -sf "$library" "$links/lib$name.so"
    export CPATH=${library%/lib/*}/include${CPATH:+:$CPATH}
    export LIBRARY_PATH=$links${LIBRARY_PATH:+:$LIBRARY_PATH}
    export LD_LIBRARY_PATH=${library%/*}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    say "lib$name is $library"
  done
  # For commands by hand, after this script.
  printf 'export LD_LIBRARY_PATH=%q\n' "$LD_LIBRARY_PATH" >"$folder/environment.sh"
}

# Kernels for this GPU only, which halves the time of nvcc; for the default ones where it does not say what it is.
configure() {
  local capability arch options=(-Dbuildtype=release -Dtests=true -Dcuda=enabled)
  capability=$(timeout 30 nvidia-smi --id=0 --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d .) || true
  if [[ $capability =~ ^[0-9]+$ ]]; then
    arch=$capability
    if ((arch == 90)); then arch=90a; fi
    options+=("-Dsm_archs=$arch")
  fi
  if [[ -f $folder/build.ninja ]]; then
    meson configure "$folder" "${options[@]}"
  else
    meson setup "$folder" "${options[@]}"
  fi
}

build() {
  configure && ninja -C "$folder" -k 0 -j "$(nproc)" gptrain tests/ops/test_ops tests/parity/test_parity_cuda
}

environment() {
  timeout 30 nvidia-smi
  nvcc --version
  python3 --version
  nproc
  free -g
}

python_part() { # NAME LOG SECONDS PART [ARGUMENT...]
  local name=$1 log=$2 limit=$3
  shift 3
  if (($(left) < limit)); then limit=$(left); fi
  part "$name" "$log" "$limit" python3 tools/gpu_check_parts.py "$@" --gptrain "$folder/gptrain" --rows "$rows" \
    --seconds "$((limit - 5))"
}

# Each op and each case in a process of its own, several at once: what has brought the device down for one has not for
# the next. With a cache of their own: algorithms that were timed beside others are not to serve the benches.
tests() {
  local -x XDG_CACHE_HOME=$PWD/$LOGS/cache-of-tests
  python_part 'every op (test_ops)' ops.log 150 each "$folder/tests/ops/test_ops" || true
  python_part 'steps beside the CPU (test_parity_cuda)' parity.log 150 each "$folder/tests/parity/test_parity_cuda" ||
    true
}

later_tests() {
  python_part 'stop and resume' resume.log 60 resume || true
  python_part 'memory' memory.log 60 memory || true
}

# The marks are of these shapes; tools/bench_gpu.py and tools/compare_torch_gpu.py by themselves do all.
whole_steps() {
  local limit=170
  if (($(left) < limit)); then limit=$(left); fi
  if part 'whole steps' steps.log "$limit" python3 tools/bench_gpu.py --gptrain "$folder/gptrain" --rows "$rows" \
    --seconds "$((limit - 10))" --cases gpt2-124m-1024 gpt2-1.5b-1024 gpt2-1.5b-1024-fp8; then
    cut -c1-200 "$LOGS/steps.log"
  fi
}

kernels() {
  part 'benches of kernels' kernels.log 170 "$folder/tests/ops/test_ops" --backend cuda --bench || true
  if [[ -f $LOGS/kernels.log ]]; then
    python_part 'kernels at their marks' kernels-marks.log 20 kernels "$LOGS/kernels.log" || true
  fi
}

beside_torch() {
  local name='PyTorch on the same machine' sees_gpu='import torch, sys; sys.exit(not torch.cuda.is_available())'
  if (($(left) < 90)); then
    skip "$name" 'no time was left'
  elif ! timeout 40 python3 -c "$sees_gpu" 2>/dev/null; then
    skip "$name" 'python3 has no torch that sees a GPU'
  elif
    part "$name" torch.log "$(left)" python3 tools/compare_torch_gpu.py --gptrain "$folder/gptrain" --rows "$rows" \
      --seconds "$(($(left) - 10))" --torch-seconds 80 --loss-cases gpt2-124m --cases gpt2-124m-1024 gpt2-1.5b-1024
  then
    cut -c1-200 "$LOGS/torch.log"
  fi
}

benches() {
  whole_steps
  kernels
  if [[ $tests == yes ]]; then later_tests; fi
  python_part 'profile of 124M' profile.log 60 profile --cases gpt2-124m-1024 || true
  beside_torch
}

print_table() {
  printf '\n%-76s %14s %-14s %-22s %s\n' check figure unit mark outcome
  awk -F '\t' '{ printf "%-76.76s %14s %-14.14s %-22.40s %s\n", $1, $2, $3, $4, $5; count[$5]++ }
    END { printf "\n%d passed, %d failed, %d skipped\n", count["pass"], count["fail"], count["skipped"];
          exit count["fail"] > 0 }' "$rows"
}

gpu=$(timeout 30 nvidia-smi --id=0 --query-gpu=name --format=csv,noheader 2>/dev/null) || gpu=''
if [[ -z $gpu && -e /dev/nvidia0 ]]; then gpu='one of which nvidia-smi says nothing'; fi
say "GPU: ${gpu:-none}; the log is $results/gpu-check.log"
environment >"$results/gpu-check.log" 2>&1 || true

if [[ $build == no && ! -x $folder/gptrain ]]; then
  skip build "there is no $folder/gptrain"
elif [[ $build == no ]]; then
  find_libraries
  skip build 'asked for (--no-build)'
elif ! command -v nvcc >/dev/null; then
  skip build 'there is no nvcc'
else
  mkdir -p "$folder"
  find_libraries
  # A function cannot be run by timeout, but by a shell that it starts.
  export -f configure build
  export folder
  part build build.log 300 bash -c build || true
fi
if [[ -z $gpu ]]; then
  skip 'tests and benches' 'there is no GPU'
elif [[ ! -x $folder/gptrain ]]; then
  skip 'tests and benches' 'there is no build'
else
  if [[ $tests == yes ]]; then tests; else skip tests 'asked for (--no-tests)'; fi
  if [[ $quick == no ]]; then
    benches
  else
    skip benches 'asked for (--quick)'
    if [[ $tests == yes ]]; then later_tests; fi
  fi
fi
print_table | tee "$results/table.txt"
