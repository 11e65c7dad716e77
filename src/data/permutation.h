// A shuffle of [0, n) computed per index: no table, no memory, any n.
#pragma once

#include <cstdint>

#include "base/philox.h"

namespace gptrain::inline data {

// A bijection of [0, size), determined by key and tweak, in O(1) expected time without memory: a Feistel network (Luby
// and Rackoff, SIAM J. Comput. 1988) over the smallest power of two >= size, with Philox as round function, applied
// again while the result is outside ("cycle walking", Black and Rogaway, CT-RSA 2002). The same on every machine.
class Permutation {
 public:
  // REQUIRES: 1 <= size <= 2^63.
  Permutation(PhiloxKey key, uint64_t tweak, uint64_t size);

  uint64_t operator()(uint64_t index) const;  // REQUIRES: index < size

 private:
  uint64_t feistel(uint64_t value) const;

  PhiloxKey key_;
  uint64_t tweak_;
  uint64_t size_;
  int low_bits_;
  uint32_t high_mask_;
  uint32_t low_mask_;
};

}  // namespace gptrain::data
