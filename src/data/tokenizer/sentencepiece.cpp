#include "data/tokenizer/sentencepiece.h"

#include <charconv>
#include <sentencepiece_processor.h>
#include <utility>

#include "base/error.h"

namespace gptrain {
namespace {

constexpr std::string_view space_symbol = "\u2581";

// "<0x0A>" is a newline.
std::string byte_of(std::string_view piece) {
  constexpr size_t prefix = std::string_view("<0x").size();
  uint8_t byte = 0;
  std::from_chars(piece.data() + prefix, piece.data() + piece.size(), byte, 16);
  return {static_cast<char>(byte)};
}

std::string with_spaces(std::string_view piece) {
  std::string text;
  for (size_t at = 0; at < piece.size();) {
    const bool is_space = piece.substr(at).starts_with(space_symbol);
    text += is_space ? ' ' : piece[at];
    at += is_space ? space_symbol.size() : 1;
  }
  return text;
}

}  // namespace

struct SentencePiece::Impl {
  sentencepiece::SentencePieceProcessor processor;
};

SentencePiece::SentencePiece(std::string model, const std::string& source)
    : model_(std::move(model)), impl_(std::make_unique<Impl>()) {
  sentencepiece::SentencePieceProcessor& processor = impl_->processor;
  if (const auto status = processor.LoadFromSerializedProto(model_); !status.ok())
    throw Error(ExitCode::usage, "{}: no model that SentencePiece can read: {}", source, status.ToString());
  const int size = processor.GetPieceSize();
  for (int id = 0; id < size; ++id) {
    const std::string& piece = processor.IdToPiece(id);
    texts_.push_back(processor.IsByte(id) ? byte_of(piece) : with_spaces(piece));
    special_.push_back(processor.IsControl(id) || processor.IsUnknown(id) || processor.IsUnused(id));
  }
  if (const int id = processor.eos_id(); id >= 0) end_id_ = id;
}

SentencePiece::~SentencePiece() = default;

void SentencePiece::encode(std::string_view text, std::vector<int32_t>& ids) const {
  if (const auto status = impl_->processor.Encode(text, &ids); !status.ok())
    throw Error(ExitCode::data, "SentencePiece cannot encode a text: {}", status.ToString());
}

std::string SentencePiece::decode(std::span<const int32_t> ids) const {
  std::string text;
  if (const auto status = impl_->processor.Decode(std::vector<int>(ids.begin(), ids.end()), &text); !status.ok())
    throw Error(ExitCode::data, "SentencePiece cannot decode ids: {}", status.ToString());
  return text;
}

}  // namespace gptrain
