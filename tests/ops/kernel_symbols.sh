#!/bin/sh
# kernel_symbols.sh NM LIBRARY...
#
# Fails if a kernel library holds a weak function: an inline function that the linker might use for the whole program,
# compiled for instructions that this CPU may lack (see src/ops/cpu/kernels/isa.h).
nm=$1
shift
command -v "$nm" > /dev/null || { echo "skipped: no $nm"; exit 77; }
status=0
for library in "$@"; do
  symbols=$("$nm" --demangle "$library") || exit 1
  if weak=$(printf '%s\n' "$symbols" | grep -E '^[0-9a-f ]* W '); then
    echo "$library holds functions that the linker may share:"
    echo "$weak"
    status=1
  fi
done
exit $status
