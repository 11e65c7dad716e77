// A product as cuBLASLt is told of it.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "device/algorithms.h"
#include "device/epilogues.h"

namespace gptrain {

// What an algorithm is chosen for. Alignments are in bytes, of the addresses; strides speak for themselves.
struct ProductKey {
  int64_t m, n, k;
  int64_t lda, ldb, ldd;
  uint32_t align_a, align_b, align_d;
  bool transpose_a, transpose_b;
  DType operands, result;
  Epilogue epilogue;
  int64_t ld_aux;  // of the pre-activation; 0: there is none
  auto operator<=>(const ProductKey&) const = default;

  std::string text() const;
};

ProductKey key_of(const Call& call);
// Completes the descriptors, but for the pointers and for the algorithm.
void describe(const ProductKey& key, const Call& call, Served& served);
void set_pointers(const Call& call, Served& served);
LtOperands operands_of(const Call& call);
Expected expected_of(const Call& call);

}  // namespace gptrain
