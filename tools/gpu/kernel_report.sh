#!/usr/bin/env bash
# Reports registers, stack, spills, shared memory and blocks per multiprocessor of every CUDA kernel, as ptxas prints
# them for one architecture; with cuobjdump also the instructions that access local memory. Needs nvcc and no GPU.
# Blocks refer to the shapes that the host harness launches. Kernels of a training step are marked: of small models as
# wide as GPT-2 124M (G), the same with FP8 (8), and as LLaMA (L). For other kernels the largest shape in the ops' tests
# counts (t).
#   tools/gpu/kernel_report.sh [--arch 90a] [--build build]     --build: the build folder with the host harness
set -euo pipefail
source "$(dirname "$0")/../common.sh"

arch=90a build=build
while (($#)); do
  case "$1 ${2:-}" in
    '--arch '[0-9]*) arch=$2 ;;
    '--build '?*) build=$2 ;;
    *) die "usage: tools/gpu/kernel_report.sh [--arch 90a] [--build FOLDER]" ;;
  esac
  shift 2
done
PATH=$PATH:${CUDA_PATH:-${CUDA_HOME:-/usr/local/cuda}}/bin
command -v nvcc >/dev/null || die 'there is no nvcc'
harness=$build/tests/parity/gptrain_cuda_host ops=$build/tests/ops/test_ops_cuda_host

folder=build/kernel-report/sm_$arch
mkdir -p "$folder"
newest=$(find cuda src/base src/ops -name '*.h' -printf '%T@ %p\n' | sort -n | tail -n 1 | cut -d' ' -f2)

# Compiles a kernel if its object is older than its source or any header.
compile() { # SOURCE
  local name
  name=$(basename "$1" .cu)
  if [[ $folder/$name.txt -nt $1 && $folder/$name.txt -nt $newest ]]; then return; fi
  nvcc -cubin -O3 -std=c++20 --expt-relaxed-constexpr --extended-lambda -I cuda -I src \
    -gencode "arch=compute_$arch,code=sm_$arch" -Xptxas -v "$1" -o "$folder/$name.cubin" >"$folder/$name.part" 2>&1 ||
    { cat "$folder/$name.part" >&2; return 1; }
  mv "$folder/$name.part" "$folder/$name.txt"
}
export -f compile
export folder arch newest
printf '%s\n' cuda/kernels/*.cu | xargs -P "$(nproc)" -I{} bash -c 'compile {}'
if command -v cuobjdump >/dev/null; then
  for cubin in "$folder"/*.cubin; do cuobjdump -sass "$cubin" >"${cubin%.cubin}.sass"; done
fi

# step NAME CONFIG-LINES: writes the launches of a step on the harness to $folder/NAME.launches
step() {
  local run=$folder/run-$1
  rm -rf "$run"
  mkdir -p "$run"
  seq 2000 >"$run/text.txt"
  "$harness" data pack "$run/text.txt" --out "$run/tokens" --tokenizer bytes >"$run/log"
  printf '{"model": {%s, "num_layers": 1, "vocab_size": 1000, "sequence_length": 64}, "batch": {"global": 2, "micro": 1},
    "data": {"train": [{"path": "%s/tokens"}]}, "precision": {"compute": "bf16"%s}, "checkpoint": {"every_steps": 0},
    "optimizer": {"lr": 1e-3}, "schedule": {"type": "constant"}, "run": {"steps": 2, "out": "%s/out", "device": "cuda"}}\n' "$2" "$run" "$3" "$run" >"$run/config.json"
  GPTRAIN_LAUNCH_LOG=$folder/$1.launches "$harness" train "$run/config.json" >"$run/log" 2>&1 ||
    { cat "$run/log" >&2; die "the harness could not run the step $1"; }
}
rm -f "$folder"/*.launches
if [[ -x $harness && -x $ops ]]; then
  gpt2='"hidden_size": 768, "num_heads": 12'
  step G "$gpt2" ''
  step 8 "$gpt2" ', "linears": "fp8"'
  step L '"hidden_size": 768, "num_heads": 12, "num_kv_heads": 4, "norm": "rmsnorm", "positions": "rope", "activation": "swiglu", "bias": false, "tied_head": false' ''
  GPTRAIN_LAUNCH_LOG=$folder/t.launches "$ops" --backend cuda --repeats 1 >"$folder/ops.log" ||
    die "an op's test fails on the harness ($folder/ops.log)"
else
  say "no kernel has shapes and marks (ninja -C $build ${harness#"$build/"} ${ops#"$build/"})"
fi
python3 tools/gpu/kernel_table.py "$folder" --steps "$harness" --tests "$ops"
