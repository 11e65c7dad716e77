#include <zlib.h>

#include "data/ingest/stream_decoder.h"

namespace gptrain::inline data {
namespace {

class GzipDecoder : public Decoder {
 public:
  GzipDecoder() {
    constexpr int gzip_window_bits = 15 + 16;
    if (inflateInit2(&stream_, gzip_window_bits) != Z_OK) throw std::bad_alloc();
  }
  ~GzipDecoder() override { inflateEnd(&stream_); }

  Step decode(std::string_view input, char* out, size_t capacity) override {
    return decode_stream(stream_, input, out, capacity, [&] {
      const int result = inflate(&stream_, Z_NO_FLUSH);
      if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
        throw DecodeFault(stream_.msg != nullptr ? stream_.msg : "damaged");
      }
      return result == Z_STREAM_END;
    });
  }

  void restart() override { inflateReset(&stream_); }

 private:
  z_stream stream_{};
};

}  // namespace

std::unique_ptr<Decoder> make_gzip_decoder() { return std::make_unique<GzipDecoder>(); }

}  // namespace gptrain::data
