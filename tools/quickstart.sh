#!/usr/bin/env bash
# From a fresh Debian or Ubuntu machine to a trained model.
#   tools/quickstart.sh            trains configs/demo.json on an English dictionary (package dict-gcide)
#   tools/quickstart.sh MY.txt     the same on a text of yours
# Installs missing packages, builds build/gptrain, packs the corpus, prints the dry run, trains, stops half-way by a
# signal and resumes, and writes a sample of generated text. Finished steps are not repeated.
set -euo pipefail
text=
if (($#)); then
  if [[ $# -ne 1 || $1 == -* ]]; then
    echo "usage: tools/quickstart.sh [MY.txt]" >&2
    exit 2
  fi
  text=$(readlink -f -- "$1") || text=$1
  [[ -f $text && -r $text ]] || { echo "error: $1: no such file, or not readable" >&2 && exit 2; }
fi
source "$(dirname "$0")/common.sh"

CONFIG=configs/demo.json
GPTRAIN=build/gptrain

build_program() {
  say "1/6 build ($GPTRAIN), a few minutes the first time; its output goes to $LOGS"
  bash tools/setup.sh
  if [[ ! -f build/build.ninja ]]; then
    local cuda=auto
    if ! has_gpu; then
      cuda=disabled
      echo "no NVIDIA GPU here: the CUDA backend is left out (meson configure build -Dcuda=auto brings it back)"
    fi
    run_logged configure.log meson setup build -Dbuildtype=release -Dtests=false -Dcuda=$cuda || exit 1
  fi
  run_logged build.log ninja -C build -j "$(nproc)" gptrain || exit 1
}

# Prints the path of the compressed dictionary text in folder $1; installs nothing.
fetch_gcide() {
  local folder=$1 installed=/usr/share/dictd/gcide.dict.dz
  if [[ -f $installed ]]; then
    cp /usr/share/doc/dict-gcide/copyright "$folder/copyright"
    echo "$installed"
    return
  fi
  command -v apt-get dpkg-deb >/dev/null ||
    die "no apt-get here to get the corpus with: give a text of your own, tools/quickstart.sh MY.txt"
  if ! (cd "$folder" && apt-get -q download dict-gcide) >"$LOGS/corpus.log" 2>&1; then
    run_logged corpus.log as_root apt-get -q update || exit 1
    (cd "$folder" && apt-get -q download dict-gcide) >"$LOGS/corpus.log" 2>&1 ||
      die "cannot download the package dict-gcide (see $LOGS/corpus.log): check the network, or give a text of your own"
  fi
  dpkg-deb -x "$folder"/dict-gcide_*.deb "$folder/package"
  cp "$folder/package/usr/share/doc/dict-gcide/copyright" "$folder/copyright"
  echo "$folder/package$installed"
}

prepare_text() {
  if [[ -n $text ]]; then
    echo "source: $text"
    python3 tools/prepare_corpus.py --format plain "$text" "$corpus"
    return
  fi
  echo "source: the Collaborative International Dictionary of English, Debian package dict-gcide"
  echo "licence: GNU General Public License, version 2 or later ($corpus/copyright)"
  local folder archive
  rm -rf "$corpus"/download.*  # left by an interrupted call
  folder=$(mktemp -d "$corpus/download.XXXXXX")
  archive=$(fetch_gcide "$folder")
  gzip -dc <"$archive" >"$folder/gcide.txt"
  python3 tools/prepare_corpus.py --format gcide "$folder/gcide.txt" "$corpus"
  mv "$folder/copyright" "$corpus/copyright"
  rm -r "$folder"
}

get_corpus() {
  say "2/6 corpus ($corpus)"
  mkdir -p "$corpus"
  if [[ ! -f $corpus/train.txt || ! -f $corpus/heldout.txt ]]; then
    prepare_text
  fi
  local part packed=no
  for part in train heldout; do
    if [[ ! -f $corpus/$part.bin || ! -f $corpus/$part.idx ]]; then
      $GPTRAIN data pack "$corpus/$part.txt" --out "$corpus/$part" --tokenizer bytes --format text
      packed=yes
    fi
  done
  [[ $packed == yes ]] || echo "packed already"
}

# bf16 takes about half as long as fp32 if the CPU has instructions for it, and longer otherwise. A run keeps its first
# choice.
choose_precision() {
  local begun=$run/config.json
  if [[ -f $begun ]]; then
    ! grep -q '"compute": "bf16"' "$begun" || settings+=(--set precision.compute=bf16)
  elif grep -qE '\b(avx512_bf16|amx_bf16)\b' /proc/cpuinfo; then
    settings+=(--set precision.compute=bf16)
  fi
}

# Prints the newest value of a member in the run's metrics; nothing if there is none.
last_metric() {
  [[ -f $run/metrics.jsonl ]] || return 0
  { grep -oE "\"$1\": *[-+.0-9eE]+" "$run/metrics.jsonl" || true; } | tail -n 1 | sed 's/.*: *//'
}
last_step() {
  local step
  step=$(last_metric step) || true
  echo "${step:-0}"
}

# The child must not outlive an interrupted script: it saves and ends.
child=
# Ctrl-C reaches the child directly; a second signal would end it at once.
trap '[[ -z $child ]] || wait "$child" || true; exit 130' INT
trap '[[ -z $child ]] || { kill -TERM "$child" 2>/dev/null; wait "$child" || true; }; exit 143' TERM

# Trains until step $1 and stops by SIGTERM, as a cluster's scheduler would.
train_until() {
  local status=0
  $GPTRAIN train $CONFIG --resume latest "${settings[@]}" &
  child=$!
  while (($(last_step) < $1)) && kill -0 "$child" 2>/dev/null; do sleep 0.2; done
  kill -TERM "$child" 2>/dev/null || true
  wait "$child" || status=$?
  child=
  case $status in
    75) say "stopped by SIGTERM at step $(last_step) of $steps, saved (exit 75)" ;;
    0) say "it had finished before it could be stopped" ;;
    *) exit "$status" ;;
  esac
}

train() {
  steps=$($GPTRAIN config show $CONFIG "${settings[@]}" |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["run"]["steps"])')
  if [[ -f $run/quickstart-finished && $(<"$run/quickstart-finished") == "$steps" ]]; then
    say "3/6 to 5/6 trained already: $steps steps in $run"
    return
  fi
  say "3/6 dry run: what training will cost"
  $GPTRAIN train $CONFIG "${settings[@]}" --dry-run
  if (($(last_step) < steps / 2)); then
    say "4/6 train to the middle, and stop"
    train_until $((steps / 2))
  fi
  say "5/6 resume, and train to the end"
  $GPTRAIN train $CONFIG --resume latest "${settings[@]}" &
  child=$!
  wait "$child"
  child=
  echo "$steps" >"$run/quickstart-finished"
}

show_results() {
  say "6/6 results"
  $GPTRAIN generate --checkpoint "$run" --prompt "The " --tokens 300 | tee "$run/sample.txt"
  local entropy
  entropy=$($GPTRAIN data inspect "$corpus/heldout" | grep -i 'unigram entropy') ||
    die "$GPTRAIN data inspect $corpus/heldout names no unigram entropy"
  entropy=$(sed -nE '1s/^[^0-9]*([0-9]+\.[0-9]+).*/\1/p' <<<"$entropy")
  cat <<SUMMARY

validation loss   $(printf '%.4f' "$(last_metric validation_loss)") nats per byte, after $steps steps
unigram entropy   $entropy nats per byte: the loss of the best guess that ignores the context
metrics           $run/metrics.jsonl
checkpoints       $run/checkpoints
sample            $run/sample.txt
report            $run/report.html
SUMMARY
}

if [[ -n $text ]]; then
  # A changed text is another corpus and another run.
  name=own-$(sha256sum -- "$text" | cut -c 1-12)
  corpus=data/corpus/$name
  run=runs/$name
  settings=(--set "data.train=[{\"path\": \"$corpus/train\"}]" --set "data.validation=[{\"path\": \"$corpus/heldout\"}]"
    --set "run.out=$run")
else
  corpus=data/corpus
  run=runs/demo
  settings=()
fi

build_program
get_corpus
choose_precision
train
show_results
