#include "data/tokenizer/sentencepiece.h"

#include <charconv>
#include <exception>
#include <new>
#include <sentencepiece_processor.h>
#include <utility>

#include "base/error.h"
#include "data/tokenizer/charsmap.h"

namespace gptrain::inline data {
namespace {

constexpr std::string_view space_symbol = "\u2581";

// Returns the byte that a byte token such as "<0x0A>" denotes.
std::string byte_of(std::string_view piece) {
  constexpr size_t prefix = std::string_view("<0x").size();
  if (piece.size() < prefix) return std::string(piece);
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

// Turns faults of the library into Error(code). It reports some as a Status and throws others; its texts name places in
// its source, and are left out.
template <typename Work>
void using_library(ExitCode code, const std::string& message, Work work) {
  bool is_ok = false;
  try {
    is_ok = work().ok();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    is_ok = false;
  }
  if (!is_ok) throw Error(code, "{}", message);
}

}  // namespace

struct SentencePiece::Impl {
  sentencepiece::SentencePieceProcessor processor;
};

SentencePiece::SentencePiece(std::string model, const std::string& source)
    : model_(std::move(model)), impl_(std::make_unique<Impl>()) {
  sentencepiece::SentencePieceProcessor& processor = impl_->processor;
  const std::string what = source + ": cannot be read as a SentencePiece model";
  if (const std::string fault = find_charsmap_fault(model_); !fault.empty())
    throw Error(ExitCode::usage, "{}: {}; fetch it again", what, fault);
  using_library(ExitCode::usage, what + ": it is damaged or another kind of file; fetch it again",
                [&] { return processor.LoadFromSerializedProto(model_); });
  const int size = processor.GetPieceSize();
  for (int id = 0; id < size; ++id) {
    const std::string& piece = processor.IdToPiece(id);
    texts_.push_back(processor.IsByte(id) ? byte_of(piece) : with_spaces(piece));
    special_.push_back(processor.IsControl(id) || processor.IsUnknown(id) || processor.IsUnused(id));
  }
  if (const int id = processor.eos_id(); id >= 0) end_id_ = id;
}

SentencePiece::~SentencePiece() = default;

std::unique_ptr<const SentencePiece> SentencePiece::without(int32_t id, const std::string& source) const {
  return std::make_unique<const SentencePiece>(with_unused_piece(model_, id), source);
}

void SentencePiece::encode(std::string_view text, std::vector<int32_t>& ids) const {
  using_library(ExitCode::data, "SentencePiece cannot encode a text: its model is damaged",
                [&] { return impl_->processor.Encode(text, &ids); });
}

std::string SentencePiece::decode(std::span<const int32_t> ids) const {
  std::string text;
  using_library(ExitCode::data, "SentencePiece cannot decode ids: its model is damaged",
                [&] { return impl_->processor.Decode(std::vector<int>(ids.begin(), ids.end()), &text); });
  return text;
}

}  // namespace gptrain::data
