// Names of all ops, and totals of the calls of each.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "base/int128.h"
#include "ops/ops.h"

namespace gptrain::inline ops {

#define GPTRAIN_ONE_OP(Op) +1
constexpr size_t num_ops = 0 GPTRAIN_FOR_EACH_OP(GPTRAIN_ONE_OP);
#undef GPTRAIN_ONE_OP

// Index of an op in GPTRAIN_FOR_EACH_OP.
template <typename Wanted>
constexpr size_t op_index = [] {
  size_t index = 0, found = num_ops;
#define GPTRAIN_FIND_OP(Op)                      \
  if (std::is_same_v<Wanted, Op>) found = index; \
  ++index;
  GPTRAIN_FOR_EACH_OP(GPTRAIN_FIND_OP)
#undef GPTRAIN_FIND_OP
  return found;
}();

constexpr std::array<std::string_view, num_ops> op_names = {
#define GPTRAIN_OP_NAME(Op) Op::name,
    GPTRAIN_FOR_EACH_OP(GPTRAIN_OP_NAME)
#undef GPTRAIN_OP_NAME
};

struct OpTotals {
  int64_t calls = 0;
  Flops model_flops = 0;
  Flops executed_flops = 0;
  Flops bytes_moved = 0;

  OpTotals& operator+=(const OpTotals& other);
};
using OpTable = std::array<OpTotals, num_ops>;

}  // namespace gptrain::ops
