#include "data/ingest/encode_block.h"

#include <utility>

namespace gptrain {

BlockEncoder::BlockEncoder(std::shared_ptr<const Tokenizer> tokenizer, const EncodeOptions& options)
    : tokenizer_(std::move(tokenizer)),
      options_(options),
      encoder_(tokenizer_),
      texts_(options.field, options.replace_invalid_utf8, tokenizer_->is_bytes()) {}

EncodedBlock BlockEncoder::encode(const Block& block) {
  out_ = {};
  const bool is_text = block.kind == InputKind::text;
  texts_.read(
      block,
      [&](std::string_view text, int64_t) {
        const std::span<const int32_t> ids = encoder_.encode(text);
        out_.ids.insert(out_.ids.end(), ids.begin(), ids.end());
        if (!is_text) end_document(false);
      },
      [&](int64_t line, const std::string& reason) {
        fault(line, reason);
        if (is_text) out_.is_whole = false;
      });
  // What came in the blocks before is the document's, too.
  if (is_text && block.ends_document) end_document(block.offset > 0);
  return std::move(out_);
}

void BlockEncoder::end_document(bool has_more) {
  if (!has_more && out_.ids.size() == (out_.ends.empty() ? 0 : out_.ends.back())) {
    ++out_.empty_documents;
    return;
  }
  if (options_.end_token) out_.ids.push_back(*options_.end_token);
  out_.ends.push_back(out_.ids.size());
}

void BlockEncoder::fault(int64_t line, const std::string& reason) {
  ++out_.num_faults;
  if (out_.faults.size() < EncodedBlock::max_faults) out_.faults.push_back({line, reason});
}

}  // namespace gptrain
