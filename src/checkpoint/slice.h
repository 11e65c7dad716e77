// A box of a tensor in memory, to be saved or filled.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "checkpoint/boxes.h"

namespace gptrain::inline checkpoint {

// Prefix of a tensor's name for its weights. Values of the optimizer's state have the column's name there.
constexpr std::string_view weight_prefix = "weight/";

// A box of one global tensor (true shape, never padding), f32, bf16 or u8, in row-major order at `data`, which the
// caller owns and which lies in `memory`.
struct Slice {
  std::string name;  // "weight/blocks.0.qkv.weight"
  std::vector<int64_t> global_shape;
  std::vector<int64_t> offset;  // offset of the box in the global tensor
  std::vector<int64_t> shape;
  void* data = nullptr;
  SliceMemory* memory = nullptr;  // null: host memory
  DType dtype = DType::f32;
  bool rounds = false;  // a bf16 slice may be filled from f32, rounded to nearest
};

}  // namespace gptrain::checkpoint
