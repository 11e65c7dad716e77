// Operations of a group, under the names by which calls are compared, counted and reported.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/enum_array.h"

namespace gptrain::inline comm {

// Reductions come first: is_reduction compares values.
enum class Operation : uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all,
  all_to_all_v,
  broadcast,
  send,
  receive,
  barrier,
  count
};
constexpr size_t num_operations = static_cast<size_t>(Operation::count);
constexpr EnumArray<Operation, std::string_view, num_operations> operation_names = {
    "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "all_to_all_v",
    "broadcast",  "send",           "receive",    "barrier"};

constexpr std::string_view operation_name(Operation operation) { return operation_names[operation]; }
constexpr bool is_reduction(Operation operation) { return operation <= Operation::reduce_scatter; }

}  // namespace gptrain::comm
