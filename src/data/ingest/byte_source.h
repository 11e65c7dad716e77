// Reads and decompresses an input.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "data/ingest/decoders.h"

namespace gptrain::inline data {

// Reads a file, or the standard input for "-", once from start to end. Detects gzip, zstd, xz and bzip2 by their first
// bytes, whatever the name. A file may hold several streams, with zero bytes between and after them. Not thread-safe.
class ByteSource {
 public:
  // Throws Error(data) naming the file, and Error(usage) for a compression that this build cannot read.
  explicit ByteSource(std::filesystem::path path);
  ~ByteSource();
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  // Reads up to `capacity` bytes, fewer only at the end. Throws Error(data) naming the file if it cannot be read, is
  // damaged, or ends inside of compressed data.
  size_t read(char* out, size_t capacity);

  std::string_view compression() const { return compression_; }  // "gzip", ...; empty: not compressed
  int64_t file_bytes_read() const { return file_bytes_read_; }   // bytes read of the file, compressed or not

 private:
  size_t read_file(char* out, size_t capacity);
  bool fill();
  bool skip_zeros();
  void require_same_compression();
  void tell_memory();
  std::string_view available() const { return {buffer_.data() + begin_, end_ - begin_}; }

  std::filesystem::path path_;
  int file_ = -1;
  std::vector<char> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  bool at_end_ = false;
  bool in_stream_ = false;     // a compressed stream has begun and not ended
  bool stream_ended_ = false;  // the last step ended a stream
  std::string_view compression_;
  std::unique_ptr<Decoder> decoder_;
  bool told_memory_ = false;
  int64_t file_bytes_read_ = 0;
};

}  // namespace gptrain::data
