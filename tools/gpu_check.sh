#!/usr/bin/env bash
# Checks the CUDA backend on a machine with a GPU, in stages of at most ten minutes. Each stage is one command that
# needs no other stage before it: it inspects the machine, builds in build-cuda/ whatever is missing, runs its parts,
# likeliest failures first, and ends with one table. Installs nothing and needs no network; dependencies missing on the
# machine are taken from .gpu-deps/ if `tools/gpu_deps.sh collect` has filled it. A failed part does not stop later
# ones; a part that cannot run is "skipped", with the reason. Exits with 1 if anything failed, a mark of the table
# included.
#   tools/gpu_check.sh probe      lists what is installed, and tells if a build would fail: seconds
#   tools/gpu_check.sh correctness (A) every op; attention by pattern and with caps, sinks and QK-clip; steps beside
#                                 the CPU; a step of 124M with its profile; memcheck, racecheck
#   tools/gpu_check.sh kernels    (B) products by algorithm; kernels and their marks; attention; FP8 products
#   tools/gpu_check.sh steps      (C) whole steps and their marks, and beside PyTorch if python3 has it
#   tools/gpu_check.sh ranks      (D) ranks of each axis: staged on one GPU, over NCCL, collectives; methods; stop and
#                                 resume; memory
#   tools/gpu_check.sh            probe, then all four; a stage's letter may stand for its name
#   --no-build                    uses build-cuda/ as it is; the executables alone may have been copied there
#   GPU_CHECK_SECONDS=N           most seconds of a stage (570)
#   GPU_CHECK_ARCHS=90a,...       architectures to build for if there is no GPU to ask
# Output, in $OUT or else build-cuda/gpu-check/: STAGE.log, written while parts run, and the table as STAGE.tsv and
# STAGE.txt, where STAGE is probe or the letter. build-cuda/gpu-check/ has each part's log, too.
set -euo pipefail
source "$(dirname "$0")/common.sh"

build=yes stages=()
declare -A names=([A]=correctness [B]=kernels [C]=steps [D]=ranks)
while (($#)); do
  case "$1" in
    probe | A | B | C | D) stages+=("$1") ;;
    correctness) stages+=(A) ;;
    kernels) stages+=(B) ;;
    steps) stages+=(C) ;;
    ranks) stages+=(D) ;;
    --no-build) build=no ;;
    *) die "usage: tools/gpu_check.sh [probe|correctness|kernels|steps|ranks]... [--no-build]" ;;
  esac
  shift
done
((${#stages[@]})) || stages=(probe A B C D)

folder="build-cuda"
LOGS="$folder/gpu-check"
results=${OUT:-$LOGS}
budget=${GPU_CHECK_SECONDS:-570}
mkdir -p "$LOGS" "$results"
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
toolkit=${CUDA_PATH:-${CUDA_HOME:-/usr/local/cuda}}
PATH=$PATH:$toolkit/bin

# Line buffering keeps in the log all that a process printed before it hung.
by_lines=()
if command -v stdbuf >/dev/null; then by_lines=(stdbuf -oL); fi

left() { echo $((budget - (SECONDS - stage_start))); }
row() { printf '%s\t%s\t%s\t%s\t%s\n' "$@" >>"$rows"; }

failed_rows() { grep -c $'\tfail$' "$rows" 2>/dev/null || true; }

skip() { # NAME REASON
  say "$1: skipped: $2"
  row "$1" '' '' "$2" skipped
}

# part NAME LOG SECONDS COMMAND...: runs the command for at most that time, with its output in LOG, prints how it ended,
# and adds its row, unless the command has added rows that name failures. Returns 1 if it did not pass. Exit code 77:
# the test cannot run here. The output is also copied line by line to the log of all parts, so that it survives the end
# of this script.
part() {
  local name=$1 log=$LOGS/$2 limit=$3 start=$SECONDS status=0 outcome before all=$results/$stage.log from
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

# Builds kernels for this GPU only, which halves nvcc's time; for the default architectures if it is unknown.
configure() {
  local capability arch options=(-Dbuildtype=release -Dtests=true -Dcuda=enabled)
  capability=$(timeout 30 nvidia-smi --id=0 --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d .) || true
  if [[ $capability =~ ^[0-9]+$ ]]; then
    arch=$capability
    if ((arch == 90)); then arch=90a; fi
    options+=("-Dsm_archs=$arch")
  elif [[ -n ${GPU_CHECK_ARCHS:-} ]]; then
    options+=("-Dsm_archs=$GPU_CHECK_ARCHS")
  fi
  if [[ -f $folder/build.ninja ]]; then
    meson configure "$folder" "${options[@]}"
  else
    meson setup "$folder" "${options[@]}"
  fi
}

build() {
  configure && ninja -C "$folder" -k 0 -j "$(nproc)" gptrain tests/ops/test_ops tests/parity/test_parity_cuda \
    tests/parallel/test_cuda_ranks tests/bench/bench_gpu_library
}

python_part() { # NAME LOG SECONDS PART [ARGUMENT...]
  local name=$1 log=$2 limit=$3
  shift 3
  if (($(left) < limit)); then limit=$(left); fi
  part "$name" "$log" "$limit" python3 tools/gpu/gpu_check_parts.py "$@" --gptrain "$folder/gptrain" --rows "$rows" \
    --seconds "$((limit - 5))"
}

# Runs each op and each case in its own process, several at once: a failure that breaks the device for one does not
# break the next. Uses a separate cache: algorithms timed beside other processes must not serve the benches.
stage_A() {
  local -x XDG_CACHE_HOME=$PWD/$LOGS/cache-of-tests
  python_part 'every op (test_ops)' ops.log 120 each "$folder/tests/ops/test_ops" || true
  local pattern
  for pattern in band strided columns fixed global; do
    part "attention patterns: $pattern" "attention-$pattern.log" 30 "$folder/tests/ops/test_ops" --backend cuda \
      --repeats 2 --filter "$pattern:" || true
  done
  local option
  for option in softcap sinks largest geglu '1 + gamma'; do
    part "ops with $option" "ops-${option//[ +]/}.log" 30 "$folder/tests/ops/test_ops" --backend cuda --repeats 2 \
      --filter "$option" || true
  done
  python_part 'steps beside the CPU (test_parity_cuda)' parity.log 150 each "$folder/tests/parity/test_parity_cuda" ||
    true
  XDG_CACHE_HOME='' python_part 'profile of 124M' profile.log 60 profile --cases gpt2-124m-1024 || true
  python_part 'memcheck' memcheck.log 100 sanitize "$folder/tests/ops/test_ops" --tool memcheck || true
  python_part 'racecheck' racecheck.log 80 sanitize "$folder/tests/ops/test_ops" --tool racecheck || true
}

# Parts with marks come early: the parts together may take longer than the stage, and the last are then cut.
stage_B() {
  part 'products, by algorithm' products.log 200 "$folder/tests/bench/bench_gpu_library" products || true
  python_part 'what the rules cost' products-rows.log 20 library "$LOGS/products.log" || true
  part 'benches of kernels' kernels.log 160 "$folder/tests/ops/test_ops" --backend cuda --bench || true
  if [[ -f $LOGS/kernels.log ]]; then
    python_part 'kernels at their marks' kernels-marks.log 20 kernels "$LOGS/kernels.log" || true
  fi
  part 'attention, backward' attention.log 60 "$folder/tests/bench/bench_gpu_library" attention || true
  python_part 'what fixed bits cost' attention-rows.log 20 library "$LOGS/attention.log" || true
  part 'FP8 products, by algorithm' fp8.log 110 "$folder/tests/bench/bench_gpu_library" fp8 || true
  if grep -qs '^= ' "$LOGS/fp8.log"; then
    python_part 'what the rules cost in FP8' fp8-rows.log 20 library "$LOGS/fp8.log" || true
  fi
}

# The first shapes have marks; tools/gpu/bench_gpu.py and tools/gpu/compare_torch_gpu.py run all shapes.
stage_C() {
  local limit=270
  rm -f "$LOGS/figures.json"
  if (($(left) < limit)); then limit=$(left); fi
  if part 'whole steps' steps.log "$limit" python3 tools/gpu/bench_gpu.py --gptrain "$folder/gptrain" --rows "$rows" \
    --seconds "$((limit - 10))" --figures "$LOGS/figures.json" \
    --cases gpt2-124m-1024 gpt2-1.5b-1024 gpt2-1.5b-1024-fp8 gpt2-1.5b-1024-fp8-delayed llama-160m-2048 llama-160m-2048-experts; then
    cut -c1-200 "$LOGS/steps.log"
  fi
  beside_torch
}

beside_torch() {
  local name='PyTorch on the same machine' sees_gpu='import torch, sys; sys.exit(not torch.cuda.is_available())'
  if (($(left) < 90)); then
    skip "$name" 'no time was left'
  elif ! timeout 60 python3 -c "$sees_gpu" 2>/dev/null; then
    skip "$name" 'python3 has no torch that sees a GPU'
  elif
    part "$name" torch.log "$(left)" python3 tools/gpu/compare_torch_gpu.py --gptrain "$folder/gptrain" --rows "$rows" \
      --seconds "$(($(left) - 10))" --figures "$LOGS/figures.json" --torch-seconds 150 --loss-cases gpt2-124m --cases gpt2-124m-1024 gpt2-1.5b-1024
  then
    cut -c1-200 "$LOGS/torch.log"
  fi
}

stage_D() {
  python_part 'stop and resume' resume.log 90 resume || true
  local limit=270
  if (($(left) < limit)); then limit=$(left); fi
  part ranks ranks.log "$limit" python3 tools/gpu/gpu_ranks.py --gptrain "$folder/gptrain" --rows "$rows" \
    --seconds "$((limit - 10))" || true
  # Uses a separate cache, as stage A (correctness) does.
  TEST_CASES=some XDG_CACHE_HOME=$PWD/$LOGS/cache-of-tests python_part \
    'ranks and methods on one device (test_cuda_ranks)' cuda-ranks.log 90 each \
    "$folder/tests/parallel/test_cuda_ranks" || true
  python_part 'memory' memory.log 90 memory || true
  python_part 'optimizer state on the host and in files (gpt2-1.5b)' host.log 240 host || true
}

print_table() {
  printf '\n%-76s %14s %-14s %-22s %s\n' check figure unit mark outcome
  awk -F '\t' '{ printf "%-76.76s %14s %-14.14s %-22.40s %s\n", $1, $2, $3, $4, $5; count[$5]++ }
    END { printf "\n%d passed, %d failed, %d skipped\n", count["pass"], count["fail"], count["skipped"];
          exit count["fail"] > 0 }' "$rows"
}

# begin STAGE: starts any stage. Returns 1 if the stage's parts cannot run; the table then has the reason.
begin() {
  stage=$1 stage_start=$SECONDS rows=$results/$1.tsv
  : >"$rows"
  : >"$results/$stage.log"
  say "stage $stage${names[$stage]:+ (${names[$stage]})}: the GPU is ${gpu:-none}; the log is $results/$stage.log"
  if [[ ${probed:-} ]]; then
    cp "$probed" "$rows"
  elif [[ $stage != probe && $boot && -f $LOGS/machine-$boot.tsv ]]; then
    cp "$LOGS/machine-$boot.tsv" "$rows"
  else
    part 'what this machine has' machine.log 90 python3 tools/gpu/gpu_probe.py --rows "$rows" || sound=no
    probed=$LOGS/machine.tsv
    cp "$rows" "$probed"
    if [[ $sound == yes && $boot ]]; then cp "$rows" "$LOGS/machine-$boot.tsv"; fi
  fi
  if [[ $stage == probe ]]; then return 1; fi
  if [[ $build == yes && $sound == no ]]; then
    skip build 'it would fail for what is missing'
  elif [[ $build == yes ]]; then
    # timeout cannot run a function, only a shell that does. In a longer stage 270 s are reserved for the parts; a build
    # that is cut off continues in the next stage.
    local limit=$(($(left) - 270))
    export -f configure build
    export folder
    part build build.log "$((limit > 300 ? limit : 300))" bash -c build || true
  elif [[ ! -x $folder/gptrain ]]; then
    skip build "there is no $folder/gptrain"
  elif ! part 'what was built starts' starts.log 30 "$folder/gptrain" --version; then
    return 1
  fi
  if [[ -z $gpu ]]; then
    skip "stage $stage" 'there is no GPU'
    return 1
  elif [[ ! -x $folder/gptrain ]]; then
    skip "stage $stage" 'there is no build'
    return 1
  fi
}

if [[ -f .gpu-deps/root.tar.gz ]]; then
  # shellcheck source=tools/gpu_deps.sh
  source tools/gpu_deps.sh install
  say 'what the machine lacks is taken from .gpu-deps/'
fi
gpu=$(timeout 30 nvidia-smi --id=0 --query-gpu=name --format=csv,noheader 2>/dev/null) || gpu=''
if [[ -z $gpu && -e /dev/nvidia0 ]]; then gpu='one of which nvidia-smi says nothing'; fi
# The kernel draws an id at each boot. The probe of a sound machine is kept under this id and not repeated until the
# next boot. Empty: not known, so that each call probes.
boot=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null) || boot=''
# Programs that were built elsewhere look for CUDA's libraries where they were there.
libraries=$(python3 tools/find_cuda_libraries.py "$(command -v nvcc || echo nvcc)" 2>/dev/null | cut -d'|' -f3 |
  xargs -r -n 1 dirname | sort -u | paste -sd:) || libraries=''
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH${libraries:+:}}$libraries
failed=no sound=yes
for stage in "${stages[@]}"; do
  if begin "$stage"; then "stage_$stage"; fi
  print_table >"$results/$stage.txt" || failed=yes
  cat "$results/$stage.txt"
done
[[ $failed == no ]]
