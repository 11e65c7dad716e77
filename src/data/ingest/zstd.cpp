#include <zstd.h>

#include "data/ingest/decoders.h"

namespace gptrain {
namespace {

class ZstdDecoder : public Decoder {
 public:
  ZstdDecoder() : stream_(ZSTD_createDCtx()) {
    if (stream_ == nullptr) throw std::bad_alloc();
  }
  ~ZstdDecoder() override { ZSTD_freeDCtx(stream_); }
  ZstdDecoder(const ZstdDecoder&) = delete;
  ZstdDecoder& operator=(const ZstdDecoder&) = delete;

  Step decode(std::string_view input, char* out, size_t room) override {
    ZSTD_inBuffer in{input.data(), input.size(), 0};
    ZSTD_outBuffer output{out, room, 0};
    const size_t result = ZSTD_decompressStream(stream_, &output, &in);
    if (ZSTD_isError(result) != 0) throw DecodeFault(ZSTD_getErrorName(result));
    return {in.pos, output.pos, result == 0};
  }

  void restart() override { ZSTD_DCtx_reset(stream_, ZSTD_reset_session_only); }

 private:
  ZSTD_DCtx* stream_;
};

}  // namespace

std::unique_ptr<Decoder> make_zstd_decoder() { return std::make_unique<ZstdDecoder>(); }

}  // namespace gptrain
