#!/usr/bin/env bash
# Tests the shell scripts: each parses, can be run, passes shellcheck if that is installed, and refuses unknown
# arguments. Also tests where Slurm scripts find their program and which jobs are queued again, the job script of PBS on the
# page of clusters, the corpus script, the test counter, and the build's option for another oneDNN. Run as test_scripts.sh SOURCE_ROOT.
set -euo pipefail
cd "$1"
failures=0
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# expect STATUS PATTERN COMMAND...: exit status, and an extended regular expression in the output
expect() {
  local status=$1 pattern=$2 actual=0 output
  shift 2
  output=$("$@" 2>&1 </dev/null) || actual=$?
  ((actual == status)) || fail "$*: exit $actual, not $status: $output"
  grep -qE -- "$pattern" <<<"$output" || fail "$*: no '$pattern' in: $output"
}

num_scripts=0
while IFS= read -r script; do
  num_scripts=$((num_scripts + 1))
  bash -n "$script" || fail "$script does not parse"
  if [[ $script == tools/*.sh && $script != tools/common.sh && ! -x $script ]]; then fail "$script cannot be executed"; fi
  if command -v shellcheck >/dev/null; then
    shellcheck --external-sources --exclude=SC1091 "$script" || fail "$script: shellcheck"
  fi
done < <(find tools tests -name '*.sh' -o -name '*.sbatch' && echo .ci/run)
((num_scripts >= 10)) || fail "only $num_scripts scripts found"

expect 1 'usage: tools/setup.sh' tools/setup.sh --nonsense
expect 1 'usage: tools/test.sh' tools/test.sh --suite all
expect 1 'usage: tools/gpu_check.sh' tools/gpu_check.sh --nonsense
expect 2 'usage: tools/quickstart.sh' tools/quickstart.sh --nonsense
expect 2 'no-such.txt: no such file' tools/quickstart.sh no-such.txt

# Slurm runs a copy of a script in the folder of the submission; scontrol knows the original. srun gets the program of
# the original's source tree.
mkdir "$scratch/bin" "$scratch/work"
for script in one-node several-nodes preemptible; do
  cp "tools/slurm/$script.sbatch" "$scratch/work/slurm_script"
  printf '#!/bin/sh\nprintf "   Command=%s/tools/slurm/%s.sbatch run.json\\n   StdOut=/dev/null\\n"\n' "$PWD" "$script" \
    >"$scratch/bin/scontrol"
  printf '#!/bin/sh\necho "srun $*"\n' >"$scratch/bin/srun"
  chmod +x "$scratch/bin/scontrol" "$scratch/bin/srun"
  expect 0 "^srun .* $PWD/build/gptrain train run.json --resume latest\$" env --chdir="$scratch/work" \
    PATH="$scratch/bin:$PATH" SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=1 SLURM_JOB_NODELIST=n1 bash slurm_script run.json
done
expect 1 'SLURM_JOB_ID: start this script by sbatch' env -u SLURM_JOB_ID bash tools/slurm/one-node.sbatch run.json

# Plays the starts of one job of preemptible.sbatch, each with the exit code and the last line of its run, and checks
# whether the job is queued again: expect_starts (CODE LINE yes|no)...
expect_starts() {
  local restart=0 again
  # shellcheck disable=SC2016  # for the shells of the job
  printf '#!/bin/sh\necho "$LINE"\nexit "$CODE"\n' >"$scratch/bin/srun"
  printf '#!/bin/sh\necho RUNNING\n' >"$scratch/bin/squeue"
  # shellcheck disable=SC2016
  printf '#!/bin/sh\n[ "$1" != requeue ] || exec touch again\nprintf "   Command=%s/tools/slurm/preemptible.sbatch\\n   StdOut=log\\n"\n' \
    "$PWD" >"$scratch/bin/scontrol"
  chmod +x "$scratch/bin/squeue"
  rm -f "$scratch/work/log"
  while (($#)); do
    rm -f "$scratch/work/again"
    env --chdir="$scratch/work" PATH="$scratch/bin:$PATH" CODE="$1" LINE="$2" GPTRAIN_MPI=none SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=1 \
      SLURM_JOB_NODELIST=n1 SLURM_RESTART_COUNT=$restart bash slurm_script run.json >>"$scratch/work/log" 2>&1 && fail "start $restart: exit 0"
    [[ -e $scratch/work/again ]] && again=yes || again=no
    [[ $again == "$3" ]] || fail "start $restart, exit $1 after '$2': queued again: $again"
    restart=$((restart + 1))
    shift 3
  done
}
expect_starts 75 'step 3/9' yes 75 'step 3/9' yes 75 '' yes
expect_starts 5 'step 7/9 | loss 1' yes 5 'step 8/9' yes 137 '0: step 7/9' no
expect_starts 5 'checkpoint of step 7 saved in 1 s' yes 5 'checkpoint of step 7 saved in 2 s' no
expect_starts 75 'step 7/9' yes 5 'resumed from x (step 7)' no
for code in 1 2 3 4 6 7; do expect_starts "$code" 'step 3/9' no; done

# The job of PBS passes USR2 on, whether PBS signals its shell alone or all of its processes, and queues itself again.
mkdir "$scratch/pbs"
(cd "$scratch/pbs" && bash -c "$(sed -n '/^cat >job.sh/,/^END$/p' "$OLDPWD/tools/CLUSTERS.md")")
# shellcheck disable=SC2016  # for the shells of the job
printf '#!/bin/sh\ntrap "exit 75" USR2\necho begun >began\nwhile :; do sleep 0.02; done\n' >"$scratch/bin/mpirun"
printf '#!/bin/sh\necho "$@" >again\n' >"$scratch/bin/qsub"
chmod +x "$scratch/bin/mpirun" "$scratch/bin/qsub"
for whole in '' -; do
  rm -f "$scratch/pbs/began" "$scratch/pbs/again"
  env PATH="$scratch/bin:$PATH" PBS_O_WORKDIR="$scratch/pbs" setsid sh "$scratch/pbs/job.sh" >/dev/null 2>&1 &
  job=$!
  for ((i = 0; i < 3000; ++i)); do [[ ! -e $scratch/pbs/began ]] || break; sleep 0.01; done
  kill -USR2 -- "$whole$job"
  wait "$job" || true
  [[ $(cat "$scratch/pbs/again") == job.sh ]] || fail "the job of PBS, '$whole': not queued again"
done
# It ends with a rank that a signal has killed, and is not queued again.
printf '#!/bin/sh\nexit 137\n' >"$scratch/bin/mpirun"
rm -f "$scratch/pbs/again"
env PATH="$scratch/bin:$PATH" PBS_O_WORKDIR="$scratch/pbs" timeout 20 sh "$scratch/pbs/job.sh" >/dev/null 2>&1 || [[ $? == 1 ]] ||
  fail "the job of PBS does not end with a killed rank"
[[ ! -e $scratch/pbs/again ]] || fail "the job of PBS: queued again after a killed rank"

# A faulty oneDNN folder is reported before anything is built.
if command -v meson >/dev/null; then
  onednn=$scratch/onednn
  configure=(meson setup "$scratch/build" -Dcuda=disabled -Dtests=false "-Donednn=$onednn")
  expect 1 "onednn: there is no $onednn/include/oneapi/dnnl/dnnl.h" "${configure[@]}"
  mkdir -p "$onednn/include/oneapi/dnnl" "$onednn/lib"
  touch "$onednn/include/oneapi/dnnl/dnnl.h"
  expect 1 "onednn: there is no $onednn/lib/libdnnl.so" "${configure[@]}"
  touch "$onednn/lib/libdnnl.so"
  printf '#define %s\n' 'DNNL_RUNTIME_OMP 2' 'DNNL_RUNTIME_SYCL 512' 'DNNL_CPU_RUNTIME DNNL_RUNTIME_SYCL' \
    >"$onednn/include/oneapi/dnnl/dnnl_config.h"
  expect 1 'this oneDNN is not built for OpenMP' "${configure[@]}"
fi

# Sums two logs; lists failures, and counts a log without tests as a failure.
log() { printf '{"name": "%s", "result": "%s"}\n' "$@"; }
log a OK b SKIP c OK >"$scratch/good.json"
log d FAIL e TIMEOUT f OK >"$scratch/bad.json"
: >"$scratch/empty.json"
expect 0 '^2 passed, 0 failed, 1 skipped$' tools/count_tests.py "$scratch/good.json"
expect 1 '^3 passed, 2 failed, 1 skipped$' tools/count_tests.py "$scratch/good.json" "$scratch/bad.json"
expect 1 'bad.json: e \(TIMEOUT\)' tools/count_tests.py "$scratch/bad.json"
expect 1 '^2 passed, 1 failed, 1 skipped$' tools/count_tests.py --failed-builds 1 "$scratch/good.json"
expect 1 '^0 passed, 1 failed, 0 skipped$' tools/count_tests.py "$scratch/empty.json"
expect 1 'absent.json \(no test ran\)' tools/count_tests.py "$scratch/absent.json"

# A plain text is split without loss: the two files hold its lines, and one block in twenty is held out.
seq 100000 >"$scratch/plain.txt"
expect 0 'characters to train on' tools/prepare_corpus.py --format plain "$scratch/plain.txt" "$scratch/plain"
sort -n "$scratch/plain/train.txt" "$scratch/plain/heldout.txt" | cmp - "$scratch/plain.txt" ||
  fail "the split of a plain text loses or changes lines"
percent=$((100 * $(wc -c <"$scratch/plain/heldout.txt") / $(wc -c <"$scratch/plain.txt")))
((percent >= 4 && percent <= 6)) || fail "$percent% of the text is held out"
expect 1 'too short to hold anything out' tools/prepare_corpus.py --format plain "$scratch/good.json" "$scratch/short"

{
  printf 'header\n   not an entry\n'
  for ((i = 0; i < 200; ++i)); do
    printf 'Coagulate \\Co*ag"u*late\\ (k[-o]), a. [L. coagulatus. See\n   {Cogent}.]\n   Lamin[ae] of entry %s. [1913 Webster]\n\n' $i
  done
} >"$scratch/gcide.txt"
expect 0 'held out' tools/prepare_corpus.py --format gcide "$scratch/gcide.txt" "$scratch/gcide"
expect 0 '^Coagulate, a\. \[L\. coagulatus\. See Cogent\.\] Laminae of entry 0\.$' cat "$scratch/gcide/train.txt"
if grep -q 'header\|Webster' "$scratch/gcide/train.txt"; then fail "headers or source tags are left in the corpus"; fi
expect 1 'holds no headword' tools/prepare_corpus.py --format gcide "$scratch/plain.txt" "$scratch/none"

((failures == 0)) && echo "all checks passed"
exit $((failures > 0))
