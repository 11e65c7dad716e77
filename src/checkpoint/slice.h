// A box of a tensor in memory, to be saved or filled.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "checkpoint/boxes.h"

namespace gptrain {

// Goes before a tensor's name in the name of its weights, as a column's name does in that of the optimizer's state.
constexpr std::string_view weight_prefix = "weight/";

// A box of one global tensor (true shape, never padding), f32, bf16 or u8, in row-major order at `data`, which the
// caller owns and which lies in `memory`.
struct Slice {
  std::string name;  // "weight/blocks.0.qkv.weight"
  std::vector<int64_t> global_shape;
  std::vector<int64_t> offset;  // of the box in the global tensor
  std::vector<int64_t> shape;   // of the box
  void* data = nullptr;
  SliceMemory* memory = nullptr;  // null: the host's
  DType dtype = DType::f32;
  bool rounds = false;  // of bf16 to be filled: from an f32 tensor, too, rounded to nearest
};

}  // namespace gptrain
