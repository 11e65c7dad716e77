#!/usr/bin/env bash
# Times whole training steps of gptrain and of PyTorch on this machine, side by side: GPT-2 124M, bf16 and fp32, three
# batch shapes. Builds gptrain in build-bench/. Installs the newest torch in build-bench/torch, unless PYTHON names a
# Python that has torch. Ends with one table of medians and ratios. Takes the options of tools/bench_cpu.py.
#   tools/bench_cpu.sh
#   PYTHON=/path/to/python tools/bench_cpu.sh --shapes small --rounds 5
set -euo pipefail
build="build-bench"
source "$(dirname "$0")/common.sh"

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  exec python3 tools/bench_cpu.py --help
fi

bash tools/setup.sh

say "building in $build/"
if [[ ! -f $build/build.ninja ]]; then
  run_logged "$build-configure.log" meson setup "$build" -Dbuildtype=release -Dtests=false
fi
run_logged "$build-build.log" ninja -C "$build" gptrain

python=${PYTHON:-$build/torch/bin/python}
if [[ -z ${PYTHON:-} ]] && ! { [[ -x $python ]] && "$python" -c 'import torch'; }; then
  say "installing the newest torch in $build/torch"
  run_logged "$build-venv.log" python3 -m venv "$build/torch"
  run_logged "$build-torch.log" "$build/torch/bin/pip" install --upgrade torch setuptools numpy
fi
"$python" -c 'import torch' || die "$python has no torch"

exec python3 tools/bench_cpu.py --gptrain "$build/gptrain" --python "$python" "$@"
