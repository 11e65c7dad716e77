#include <bzlib.h>
#include <new>

#include "data/ingest/stream_decoder.h"

namespace gptrain::inline data {
namespace {

class Bzip2Decoder : public Decoder {
 public:
  Bzip2Decoder() { begin(); }
  ~Bzip2Decoder() override { BZ2_bzDecompressEnd(&stream_); }
  Bzip2Decoder(const Bzip2Decoder&) = delete;
  Bzip2Decoder& operator=(const Bzip2Decoder&) = delete;

  Step decode(std::string_view input, char* out, size_t capacity) override {
    return decode_stream(stream_, input, out, capacity, [&] {
      const int result = BZ2_bzDecompress(&stream_);
      if (result == BZ_MEM_ERROR) throw std::bad_alloc();
      if (result != BZ_OK && result != BZ_STREAM_END) throw DecodeFault("damaged");
      return result == BZ_STREAM_END;
    });
  }

  void restart() override {
    BZ2_bzDecompressEnd(&stream_);
    begin();
  }

 private:
  void begin() {
    stream_ = {};
    if (BZ2_bzDecompressInit(&stream_, 0, 0) != BZ_OK) throw std::bad_alloc();
  }

  bz_stream stream_{};
};

}  // namespace

std::unique_ptr<Decoder> make_bzip2_decoder() { return std::make_unique<Bzip2Decoder>(); }

}  // namespace gptrain::data
