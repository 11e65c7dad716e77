#include "data/ingest/encode_block.h"

#include <fmt/format.h>
#include <utility>

namespace gptrain::inline data {

void TokenBuffer::append(std::span<const int32_t> ids) {
  if (!narrow_) {
    ids32_.insert(ids32_.end(), ids.begin(), ids.end());
    return;
  }
  const size_t before = ids16_.size();
  ids16_.resize(before + ids.size());
  for (size_t i = 0; i < ids.size(); ++i) ids16_[before + i] = static_cast<uint16_t>(ids[i]);
}

void TokenBuffer::append_bytes(std::string_view text) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(text.data());
  if (narrow_)
    ids16_.insert(ids16_.end(), bytes, bytes + text.size());
  else
    ids32_.insert(ids32_.end(), bytes, bytes + text.size());
}

void TokenBuffer::clear() {
  ids16_.clear();
  ids32_.clear();
}

BlockEncoder::BlockEncoder(std::shared_ptr<const Tokenizer> tokenizer, const EncodeOptions& options)
    : tokenizer_(std::move(tokenizer)),
      options_(options),
      encoder_(tokenizer_, options.end_token),
      texts_(options.replace_invalid_utf8, tokenizer_->is_bytes()) {}

EncodedBlock BlockEncoder::encode(const TextBlock& block, TokenBuffer memory) {
  out_ = {};
  if (memory.narrow() == options_.narrow)
    out_.ids = std::move(memory);
  else
    out_.ids = TokenBuffer(options_.narrow);
  out_.ids.clear();
  const bool is_text = block.kind == InputKind::text;
  texts_.read(
      block,
      [&](std::string_view text, int64_t line) {
        out_.text_bytes += static_cast<int64_t>(text.size());
        if (tokenizer_->is_bytes()) {
          out_.ids.append_bytes(text);
        } else if (!append_encoded(text, line)) {
          if (is_text) out_.stop = out_.faults.back();
          return;
        }
        if (!is_text) end_document(false);
      },
      [&](int64_t line, const std::string& reason, bool is_one_document) {
        fault(line, reason);
        if (!is_one_document && !out_.stop) out_.stop = {line, reason};
      });
  // A document with text in earlier blocks is not empty, even if this block is.
  if (is_text && block.ends_document) end_document(block.offset > 0);
  return std::move(out_);
}

// Returns false, after recording a fault, if the text has a special token and these are refused.
bool BlockEncoder::append_encoded(std::string_view text, int64_t line) {
  const std::span<const int32_t> ids = encoder_.encode(text, options_.special_in_text == SpecialInText::text);
  out_.special_in_text += encoder_.num_special();
  if (options_.special_in_text == SpecialInText::refuse && encoder_.num_special() > 0) {
    fault(line, fmt::format("its text holds the special token {} (--special-in-text)", encoder_.special_in_text()));
    return false;
  }
  if (options_.special_in_text == SpecialInText::text && encoder_.has_end_piece()) {
    fault(line,
          fmt::format("its text holds \"{}\", the end token, which is no special token: it cannot be ordinary text "
                      "(--special-in-text)",
                      encoder_.special_in_text()));
    return false;
  }
  out_.ids.append(ids);
  return true;
}

void BlockEncoder::end_document(bool has_more) {
  if (!has_more && out_.ids.size() == (out_.ends.empty() ? 0 : out_.ends.back())) {
    ++out_.empty_documents;
    return;
  }
  if (options_.end_token) out_.ids.append(*options_.end_token);
  out_.ends.push_back(out_.ids.size());
}

void BlockEncoder::fault(int64_t line, const std::string& reason) {
  ++out_.num_faults;
  if (out_.faults.size() < EncodedBlock::max_faults) out_.faults.push_back({line, reason});
}

}  // namespace gptrain::data
