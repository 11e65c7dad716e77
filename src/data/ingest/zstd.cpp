#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fmt/format.h>
#include <fstream>
#include <limits>
#include <new>
#include <string>
#include <zstd.h>

#include "base/units.h"
#include "data/ingest/decoders.h"

namespace gptrain::inline data {
namespace {

// Returns the window size in a frame's header, in bytes (RFC 8878, section 3.1.1.1); 0 if it has none.
uint64_t window_bytes(std::string_view frame) {
  constexpr size_t descriptor = 4;  // position after the magic number
  constexpr uint32_t single_segment = 1U << 5;
  if (!frame.starts_with("\x28\xB5\x2F\xFD") || frame.size() < descriptor + 2) return 0;
  if ((static_cast<uint8_t>(frame[descriptor]) & single_segment) != 0) return 0;
  const auto byte = static_cast<uint8_t>(frame[descriptor + 1]);
  const uint64_t base = uint64_t{1} << (10 + (byte >> 3));
  return base + base / 8 * (byte & 7U);
}

// Returns the memory available to processes; the largest number if the system does not tell it.
uint64_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    uint64_t kibibytes = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %" SCNu64, &kibibytes) == 1) return kibibytes * 1024;
  }
  return std::numeric_limits<uint64_t>::max();
}

class ZstdDecoder : public Decoder {
 public:
  ZstdDecoder() : stream_(ZSTD_createDCtx()) {
    if (stream_ == nullptr) throw std::bad_alloc();
    const ZSTD_bounds bounds = ZSTD_dParam_getBounds(ZSTD_d_windowLogMax);
    if (ZSTD_isError(bounds.error) == 0) ZSTD_DCtx_setParameter(stream_, ZSTD_d_windowLogMax, bounds.upperBound);
  }
  ~ZstdDecoder() override { ZSTD_freeDCtx(stream_); }
  ZstdDecoder(const ZstdDecoder&) = delete;
  ZstdDecoder& operator=(const ZstdDecoder&) = delete;

  Step decode(std::string_view input, char* out, size_t room) override {
    if (at_start_) check_window(input);
    ZSTD_inBuffer in{input.data(), input.size(), 0};
    ZSTD_outBuffer output{out, room, 0};
    const size_t result = ZSTD_decompressStream(stream_, &output, &in);
    if (ZSTD_isError(result) != 0) throw DecodeFault(ZSTD_getErrorName(result) + wanted_);
    at_start_ = result == 0;
    return {in.pos, output.pos, result == 0};
  }

  void restart() override {
    ZSTD_DCtx_reset(stream_, ZSTD_reset_session_only);
    at_start_ = true;
  }

 private:
  // A window above 128 MiB comes from zstd --long or from damage. Refuses it only if it exceeds the free memory.
  void check_window(std::string_view frame) {
    constexpr uint64_t usual_bytes = uint64_t{1} << 27;
    const uint64_t bytes = window_bytes(frame);
    wanted_.clear();
    if (bytes <= usual_bytes) return;
    const std::string size = format_bytes(static_cast<double>(bytes));
    wanted_ = fmt::format(" (its window takes {} of memory)", size);
    const uint64_t free_bytes = available_bytes();
    if (bytes > free_bytes) {
      throw DecodeFault(fmt::format("its window takes {} of memory, and {} are free", size,
                                    format_bytes(static_cast<double>(free_bytes))));
    }
  }

  ZSTD_DCtx* stream_;
  bool at_start_ = true;
  std::string wanted_;  // addition to messages if the window is large; else empty
};

}  // namespace

std::unique_ptr<Decoder> make_zstd_decoder() { return std::make_unique<ZstdDecoder>(); }

}  // namespace gptrain::data
