#include <zlib.h>

#include "data/ingest/decoders.h"

namespace gptrain::inline data {
namespace {

class GzipDecoder : public Decoder {
 public:
  GzipDecoder() {
    constexpr int gzip_window_bits = 15 + 16;
    if (inflateInit2(&stream_, gzip_window_bits) != Z_OK) throw std::bad_alloc();
  }
  ~GzipDecoder() override { inflateEnd(&stream_); }

  Step decode(std::string_view input, char* out, size_t room) override {
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input.data()));
    stream_.avail_in = static_cast<uInt>(input.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = static_cast<uInt>(room);
    const int result = inflate(&stream_, Z_NO_FLUSH);
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
      throw DecodeFault(stream_.msg != nullptr ? stream_.msg : "damaged");
    }
    return {input.size() - stream_.avail_in, room - stream_.avail_out, result == Z_STREAM_END};
  }

  void restart() override { inflateReset(&stream_); }

 private:
  z_stream stream_{};
};

}  // namespace

std::unique_ptr<Decoder> make_gzip_decoder() { return std::make_unique<GzipDecoder>(); }

}  // namespace gptrain::data
