#include <limits>
#include <lzma.h>
#include <new>
#include <string>

#include "base/units.h"
#include "data/ingest/stream_decoder.h"

namespace gptrain::inline data {
namespace {

class XzDecoder : public Decoder {
 public:
  XzDecoder() { restart(); }
  ~XzDecoder() override { lzma_end(&stream_); }
  XzDecoder(const XzDecoder&) = delete;
  XzDecoder& operator=(const XzDecoder&) = delete;

  Step decode(std::string_view input, char* out, size_t capacity) override {
    return decode_stream(stream_, input, out, capacity, [&] {
      const lzma_ret result = lzma_code(&stream_, LZMA_RUN);
      if (result == LZMA_MEM_ERROR) {
        throw DecodeMemoryFault("this process cannot get the memory that its header asks for, " +
                                format_bytes(static_cast<double>(lzma_memusage(&stream_))));
      }
      if (result != LZMA_OK && result != LZMA_STREAM_END && result != LZMA_BUF_ERROR) {
        throw DecodeFault(result == LZMA_FORMAT_ERROR ? "not xz data" : "damaged");
      }
      return result == LZMA_STREAM_END;
    });
  }

  void restart() override {
    if (lzma_stream_decoder(&stream_, std::numeric_limits<uint64_t>::max(), 0) != LZMA_OK) throw std::bad_alloc();
  }

 private:
  lzma_stream stream_ = LZMA_STREAM_INIT;
};

}  // namespace

std::unique_ptr<Decoder> make_xz_decoder() { return std::make_unique<XzDecoder>(); }

}  // namespace gptrain::data
