// A product as cuBLASLt needs it described.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "device/algorithms.h"
#include "device/epilogues.h"

namespace gptrain::inline cuda {

// All properties that an algorithm is chosen by. Alignments of addresses are in bytes.
struct ProductKey {
  int64_t m, n, k;
  int64_t lda, ldb, ldd;
  uint32_t align_a, align_b, align_d;
  bool transpose_a, transpose_b;
  DType operands, result;
  Epilogue epilogue;
  int64_t ld_aux;  // leading dimension of the pre-activation; 0: none
  auto operator<=>(const ProductKey&) const = default;

  std::string text() const;
};

ProductKey key_of(const Call& call);
// Completes the descriptors, except for pointers and algorithm.
void describe(const ProductKey& key, const Call& call, Served& served);
void set_pointers(const Call& call, Served& served);
LtOperands operands_of(const Call& call);
Expected expected_of(const Call& call);

}  // namespace gptrain::cuda
