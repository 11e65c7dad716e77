// The safetensors format: u64 header length, a JSON header, then the tensors' bytes (little-endian).
//   {"NAME": {"dtype": "F32", "shape": [..], "data_offsets": [begin, end]}, .., "__metadata__": {"KEY": "TEXT"}}
// Tensors are written and read as streams: neither side holds more than a piece of one in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "checkpoint/files.h"

namespace gptrain::inline checkpoint {

struct SafetensorsTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  // Range of the data in the file, as read_safetensors_header finds it. SafetensorsWriter does not use it.
  int64_t offset = 0;
  int64_t bytes = 0;
};

// The header's "__metadata__": texts by key.
using SafetensorsMetadata = std::map<std::string, std::string>;

// Writes a new file, which must not exist. Throws Error(checkpoint).
class SafetensorsWriter {
 public:
  // Writes the header. Tensors are stored in the order given; names must be distinct and valid UTF-8.
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<SafetensorsTensor>& tensors,
                    const SafetensorsMetadata& metadata);

  // Writes the next tensor's bytes, row-major, and returns their CRC-32C. A tensor may come in pieces, each given the
  // checksum of those before it.
  uint32_t write(const void* data, int64_t bytes, uint32_t crc = 0);

  // Call after the last tensor: the file's content is then durable.
  void finish();

  uint32_t header_crc32c() const { return header_crc32c_; }  // checksum of all bytes before the first tensor
  int64_t file_bytes() const { return file_bytes_; }

 private:
  SyncedFile file_;
  uint32_t header_crc32c_ = 0;
  int64_t file_bytes_ = 0;
};

// Returns the size of the file that a SafetensorsWriter writes.
int64_t safetensors_file_bytes(const std::vector<SafetensorsTensor>& tensors, const SafetensorsMetadata& metadata);

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  // sorted by offset
  SafetensorsMetadata metadata;
  uint32_t crc32c = 0;  // checksum of all bytes before the first tensor
};

// Reads and checks a header: its length, the JSON, each dtype and shape against its bytes, offsets contiguous from the
// header's end to the file's end. THROWS Error(checkpoint) with the file, the tensor and the fault. Refuses dtypes that
// base/dtype.h lacks.
SafetensorsHeader read_safetensors_header(const InputFile& file);

// The two parts of read_safetensors_header. The first returns all bytes before the first tensor and checks only their
// length. The second parses them; another rank may have read them from the file at `path`, which has `file_bytes`
// bytes.
std::string read_safetensors_header_bytes(const InputFile& file);
SafetensorsHeader parse_safetensors_header(std::string_view bytes, const std::filesystem::path& path,
                                           int64_t file_bytes);
// Returns the bytes of the first of several concatenated headers, its length field included; 0 if it is not complete.
size_t safetensors_header_bytes(std::string_view headers);

// A piece of a tensor: `bytes` bytes at `data` (aligned for any dtype, valid during the call only), the first of them
// at byte `offset` of the tensor. Pieces come in order, without gaps, and end at multiples of 8 or at the tensor's end.
using SafetensorsPiece = std::function<void(const std::byte* data, int64_t offset, int64_t bytes)>;

// Reads a tensor of `bytes` bytes, from byte `offset` of the file on, in pieces. Returns the CRC-32C of its bytes.
// THROWS Error(checkpoint) if a read fails, and whatever `piece` throws.
uint32_t stream_tensor(const InputFile& file, int64_t offset, int64_t bytes, const SafetensorsPiece& piece);

}  // namespace gptrain::checkpoint
