// FP8 products by cuBLASLt: the products with scales of Products.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>

#include "base/dtype.h"
#include "device/algorithms.h"
#include "ops/ops.h"

namespace gptrain::inline cuda {

// Fill in the descriptors, without algorithm and pointers, and the pointers.
void describe(const ScaledProduct& op, Served& served);
void set_pointers(const ScaledProduct& op, Served& served);
LtOperands operands_of(const ScaledProduct& op, std::byte* workspace);
Expected expected_of(const ScaledProduct& op);

// Implements Products for ScaledProduct. Borrows the algorithms.
class ScaledProducts {
 public:
  explicit ScaledProducts(Algorithms& algorithms) : algorithms_(algorithms) {}

  // Throws Error(machine), with the op and its shape, if the device or the library has no such products.
  void run(const ScaledProduct& op, std::byte* scratch, int64_t scratch_bytes);
  void choose(const ScaledProduct& op, std::byte* scratch, int64_t scratch_bytes);
  // Discards all choices, so that the records are read again.
  void forget() { served_.clear(); }

 private:
  // Properties by which an algorithm is chosen. All operands have the same alignment.
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

}  // namespace gptrain::cuda
