// A box of a tensor, in the memory of a rank or in a file of a checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "checkpoint/boxes.h"

namespace gptrain::inline checkpoint {

// Prefix of a tensor's name for its weights. Values of the optimizer's state have the column's name there.
constexpr std::string_view weight_prefix = "weight/";

// A box of one global tensor (true shape, never padding), f32, bf16 or u8, in row-major order. A rank's slice, to be
// saved or filled, has its values at `data`, which the caller owns and which lies in `memory`. A slice of a checkpoint
// has them in a file.
struct Slice {
  std::string name;  // "weight/blocks.0.qkv.weight"
  std::vector<int64_t> global_shape;
  Box box;
  void* data = nullptr;           // null in a slice of a checkpoint
  SliceMemory* memory = nullptr;  // null: host memory
  DType dtype = DType::f32;
  bool rounds = false;  // a rank's bf16 slice may be filled from f32, rounded to nearest
  // The bytes in a checkpoint; not used in a rank's slice.
  size_t file = 0;          // index in the manifest's list of files
  int64_t file_offset = 0;  // offset of the first byte
  uint32_t crc32c = 0;      // checksum of the bytes

  int64_t bytes() const { return box.count() * dtype_bytes(dtype); }
};

}  // namespace gptrain::checkpoint
