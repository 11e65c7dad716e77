// Decompresses streams, each with its library. In a build without a library, its function throws Error(usage) with the
// package to install.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string_view>

namespace gptrain::inline data {

// Data that cannot be decoded for lack of memory.
struct DecodeMemoryFault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Damaged data; carries the library's message.
struct DecodeFault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Decoder {
 public:
  virtual ~Decoder() = default;

  struct Step {
    size_t consumed;
    size_t produced;
    bool ended;  // the stream has ended; the next one needs restart()
  };
  virtual Step decode(std::string_view input, char* out, size_t capacity) = 0;
  virtual void restart() = 0;
  // Returns the memory that the stream's header asks for, in bytes; 0 if it is as usual.
  virtual uint64_t unusual_memory_bytes() const { return 0; }
};

std::unique_ptr<Decoder> make_gzip_decoder();
std::unique_ptr<Decoder> make_zstd_decoder();
std::unique_ptr<Decoder> make_xz_decoder();
std::unique_ptr<Decoder> make_bzip2_decoder();

}  // namespace gptrain::data
