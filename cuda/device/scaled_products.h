// FP8 products by cuBLASLt: those of Products that have operands and scales of their own.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>

#include "base/dtype.h"
#include "device/algorithms.h"
#include "ops/ops.h"

namespace gptrain {

// What cuBLASLt is told of the op, but for the algorithm and the pointers; the pointers.
void describe(const ScaledProduct& op, Served& served);
void set_pointers(const ScaledProduct& op, Served& served);
LtOperands operands_of(const ScaledProduct& op, std::byte* workspace);
Expected expected_of(const ScaledProduct& op);

// See Products. The algorithms are the caller's, and outlive it.
class ScaledProducts {
 public:
  explicit ScaledProducts(Algorithms& algorithms) : algorithms_(algorithms) {}

  // Throws Error(device), naming the op and its shape, where the device or the library has no such products.
  void run(const ScaledProduct& op, std::byte* scratch, int64_t scratch_bytes);
  void choose(const ScaledProduct& op, std::byte* scratch, int64_t scratch_bytes);
  // Asks the records again.
  void forget() { served_.clear(); }

 private:
  // What an algorithm is chosen for: all operands are alike in their alignment.
  struct Key {
    int64_t m, n, k;
    int64_t lda, ldb, ldd;
    DType a, b, d;
    bool bias;
    auto operator<=>(const Key&) const = default;
  };
  static Key key_of(const ScaledProduct& op);
  Served& served(const ScaledProduct& op);

  Algorithms& algorithms_;
  std::map<Key, Served> served_;
};

}  // namespace gptrain
