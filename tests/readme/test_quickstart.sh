#!/usr/bin/env bash
# Runs tools/quickstart.sh twice, on this repository's own text in a copy of the tree.
#   test_quickstart.sh SOURCE BUILD
set -euo pipefail
source_root=$(readlink -f "$1")
build_root=$(readlink -f "$2")

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp -r "$source_root"/{tools,configs} "$folder/"
ln -s "$build_root" "$folder/build"
cd "$folder"
# Fewer steps than the quickstart's, and enough for the assertions below.
sed -i 's/"steps": 600/"steps": 80/' configs/demo.json
grep -q '"steps": 80' configs/demo.json
find "$source_root"/{src,tests,data} -name '*.cpp' -o -name '*.h' -o -name '*.md' | sort | xargs cat >text.txt

fail() {
  echo "FAILED: $*" >&2
  tail -n 40 first.log >&2
  exit 1
}

tools/quickstart.sh text.txt >first.log 2>&1 || fail "the first call"
for line in '==> stopped by SIGTERM at step ' 'resumed from ' 'validation loss ' 'unigram entropy ' '^report '; do
  grep -q "$line" first.log || fail "no line with: $line"
done
run=$(awk '$1 == "report" {print $2}' first.log | xargs dirname)
for file in report.html metrics.jsonl run.json sample.txt; do
  [[ -s $run/$file ]] || fail "no $run/$file"
done
python3 - "$run/metrics.jsonl" first.log <<'PY' || fail "the loss has not fallen well below the unigram entropy"
import json, re, sys
records = [json.loads(line) for line in open(sys.argv[1])]
steps = [record["step"] for record in records if "loss" in record]
assert steps == list(range(1, len(steps) + 1)), "a step is missing or there twice"
validation = [record["validation_loss"] for record in records if "validation_loss" in record][-1]
entropy = float(re.search(r"unigram entropy +([0-9.]+)", open(sys.argv[2], errors="replace").read()).group(1))
print(f"validation loss {validation:.4f}, unigram entropy {entropy:.4f}")
assert validation < 0.85 * entropy
PY

cp "$run/metrics.jsonl" before.jsonl
tools/quickstart.sh text.txt >second.log 2>&1 || fail "the second call"
grep -q 'trained already' second.log || fail "the second call trains again"
cmp before.jsonl "$run/metrics.jsonl" || fail "the second call writes metrics"
echo "quickstart: both calls as described"
