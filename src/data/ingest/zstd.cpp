#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fmt/format.h>
#include <fstream>
#include <new>
#include <string>
#include <zstd.h>
#include <zstd_errors.h>

#include "base/control_group.h"
#include "base/units.h"
#include "data/ingest/decoders.h"

namespace gptrain::inline data {
namespace {

// Returns the window size in a frame's header, in bytes (RFC 8878, section 3.1.1.1); 0 if it has none. The window of a
// single segment is its whole content.
uint64_t window_bytes(std::string_view frame) {
  constexpr size_t descriptor = 4;  // position after the magic number
  constexpr uint32_t single_segment = 1U << 5;
  if (!frame.starts_with("\x28\xB5\x2F\xFD") || frame.size() < descriptor + 2) return 0;
  if ((static_cast<uint8_t>(frame[descriptor]) & single_segment) != 0) {
    const uint64_t bytes = ZSTD_getFrameContentSize(frame.data(), frame.size());
    return bytes == ZSTD_CONTENTSIZE_UNKNOWN || bytes == ZSTD_CONTENTSIZE_ERROR ? 0 : bytes;
  }
  const auto byte = static_cast<uint8_t>(frame[descriptor + 1]);
  const uint64_t base = uint64_t{1} << (10 + (byte >> 3));
  return base + base / 8 * (byte & 7U);
}

constexpr uint64_t usual_bytes = uint64_t{1} << 27;  // largest window that zstd itself takes without --long

constexpr const char* window_remedy =
    "free memory, or compress the data again with a smaller window (zstd without --long)";

// Returns the memory that is free for this process; the largest number if the system does not tell it.
uint64_t available_bytes() {
  const auto limit = static_cast<uint64_t>(group_limits().memory_bytes);
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    uint64_t kibibytes = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %" SCNu64, &kibibytes) == 1) return std::min(limit, kibibytes * 1024);
  }
  return limit;
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

  Step decode(std::string_view input, char* out, size_t capacity) override {
    // A header may lie in two inputs.
    const size_t head_before = head_.size();
    head_.append(input.substr(0, most_head_bytes - head_before));
    if (head_.size() > head_before) check_window(head_);
    ZSTD_inBuffer in{input.data(), input.size(), 0};
    ZSTD_outBuffer output{out, capacity, 0};
    const size_t result = ZSTD_decompressStream(stream_, &output, &in);
    if (ZSTD_getErrorCode(result) == ZSTD_error_memory_allocation) {
      throw DecodeMemoryFault(
          fmt::format("{} of memory for its zstd window cannot be allocated: {}", window_text(), window_remedy));
    }
    if (ZSTD_getErrorCode(result) == ZSTD_error_dictionary_wrong)
      throw DecodeFault("they need the dictionary of zstd -D: decompress them with it first");
    if (ZSTD_isError(result) != 0) throw DecodeFault(ZSTD_getErrorName(result));
    head_.resize(result == 0 ? 0 : std::min(head_.size(), head_before + in.pos));
    return {in.pos, output.pos, result == 0};
  }

  void restart() override {
    ZSTD_DCtx_reset(stream_, ZSTD_reset_session_only);
    head_.clear();
  }

  uint64_t unusual_memory_bytes() const override { return window_bytes_ > usual_bytes ? window_bytes_ : 0; }

 private:
  static constexpr size_t most_head_bytes = 18;  // longest header of a frame

  // A window above 128 MiB comes from zstd --long or from damage. Refuses it only if it exceeds the free memory.
  void check_window(std::string_view frame) {
    window_bytes_ = window_bytes(frame);
    if (window_bytes_ <= usual_bytes) return;
    const uint64_t free_bytes = available_bytes();
    if (window_bytes_ > free_bytes) {
      throw DecodeMemoryFault(fmt::format("its zstd window takes {} of memory, and {} are free: {}", window_text(),
                                          format_bytes(static_cast<double>(free_bytes)), window_remedy));
    }
  }

  std::string window_text() const { return format_bytes(static_cast<double>(window_bytes_)); }

  ZSTD_DCtx* stream_;
  std::string head_;           // first bytes of the frame
  uint64_t window_bytes_ = 0;  // window of the frame; 0: the header has none
};

}  // namespace

std::unique_ptr<Decoder> make_zstd_decoder() { return std::make_unique<ZstdDecoder>(); }

}  // namespace gptrain::data
