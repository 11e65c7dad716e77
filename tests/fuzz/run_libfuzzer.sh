#!/usr/bin/env bash
# Fuzzes each reader of fuzz.cpp with libFuzzer under ASan and UBSan: run_libfuzzer.sh SOURCE_ROOT BUILD_ROOT SECONDS
# [TARGET]... Needs clang with libFuzzer; without it, the exit code is 77.
set -euo pipefail
root=$1 build=$2 seconds=$3
shift 3
work=$build/libfuzzer
mkdir -p "$work"
echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' >"$work/probe.cpp"
clang++ -fsanitize=fuzzer "$work/probe.cpp" -o "$work/probe" 2>/dev/null || exit 77

# Uses the build's JSON reader.
json_texts=plain json_library=()
if pkg-config --exists simdjson; then json_texts=simdjson json_library=(-lsimdjson); fi
sources=("$root"/tests/fuzz/fuzz.cpp "$root"/src/base/*.cpp "$root"/src/config/*.cpp "$build/src/base/version.cpp"
  "$root"/src/comm/{socket,frames}.cpp "$root"/src/checkpoint/{manifest,safetensors,files,folder,boxes,hf_files,hf_keys,hf_names,hf_read_config}.cpp
  "$root"/src/model/spec/spec.cpp
  "$root"/src/data/{token_file,flat_tokens,mapped_file,token_meta}.cpp
  "$root"/src/data/tokenizer/{bpe,byte_level,encoder,files,nfc,no_sentencepiece,patterns,record,regex_classes,regex_pcre2,tokenizer,tokenizer_json,unicode}.cpp
  "$root"/src/data/ingest/{block_texts,blocks,byte_source,gzip,no_parquet,xz,zstd}.cpp "$root/src/data/ingest/json_texts_$json_texts.cpp" "$root"/src/train/{metrics,tensorboard}.cpp
  "$root"/src/report/{html_page,run_page,svg_plot}.cpp)
object_of() { local path=${1#"$root"/}; echo "$work/${path//\//-}.o"; }
# shellcheck disable=SC2016  # expanded by the shell that xargs starts
for source in "${sources[@]}"; do
  object=$(object_of "$source")
  [[ $object -nt $source ]] || echo "$source $object"
done | xargs -r -P "$(nproc)" -L 1 bash -c 'clang++ -std=c++20 -O1 -g1 -DGPTRAIN_LIBFUZZER -DFMT_HEADER_ONLY -I "$0/src" -I "$0/tests/fuzz" \
  -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -c "$1" -o "$2"' "$root"
objects=()
for source in "${sources[@]}"; do objects+=("$(object_of "$source")"); done
clang++ -fsanitize=fuzzer,address,undefined "${objects[@]}" -o "$work/fuzz" -lsodium -lpcre2-8 -lz -lzstd -llzma "${json_library[@]}"

[[ $# -gt 0 ]] || set -- config manifest header idx meta metrics frames documents tokenizer flat hf_config hf_index
for target in "$@"; do
  mkdir -p "$work/found-$target"
  echo "== $target"
  GPTRAIN_FUZZ=$target "$work/fuzz" -max_total_time="$seconds" -rss_limit_mb=4096 -timeout=20 -print_final_stats=1 \
    -artifact_prefix="$work/$target-" "$work/found-$target" "$root/tests/fuzz/corpus/$target" 2>"$work/$target.log" ||
    { tail -n 60 "$work/$target.log"; exit 1; }
  grep -E '^stat::number_of_executed_units' "$work/$target.log"
done
