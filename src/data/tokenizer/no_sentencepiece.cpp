#include "base/error.h"
#include "data/tokenizer/sentencepiece.h"

namespace gptrain::inline data {

struct SentencePiece::Impl {};

SentencePiece::SentencePiece(std::string, const std::string& source) {
  throw Error(ExitCode::usage,
              "{} is a SentencePiece model, which this build cannot read: apt-get install libsentencepiece-dev, then "
              "build again",
              source);
}

SentencePiece::~SentencePiece() = default;

std::unique_ptr<const SentencePiece> SentencePiece::without(int32_t, const std::string&) const { return nullptr; }

void SentencePiece::encode(std::string_view, std::vector<int32_t>&) const {}

std::string SentencePiece::decode(std::span<const int32_t>) const { return {}; }

}  // namespace gptrain::data
