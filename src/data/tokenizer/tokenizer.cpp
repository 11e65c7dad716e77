#include "data/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "data/tokenizer/unicode.h"

namespace gptrain {
namespace {

constexpr std::array<std::string_view, 5> ends_of_document = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>",
                                                              "<|eot|>"};

}  // namespace

Tokenizer::Tokenizer() {
  for (int byte = 0; byte < 256; ++byte) bytes_text_ += static_cast<char>(byte);
}

Tokenizer::Tokenizer(TokenizerParts parts) : parts_(std::move(parts)) {
  std::array<bool, 256> bytes{};
  for (const std::string& token : parts_.tokens) {
    if (token.size() == 1) bytes[static_cast<uint8_t>(token[0])] = true;
  }
  if (const auto missing = std::find(bytes.begin(), bytes.end(), false); missing != bytes.end()) {
    throw Error(ExitCode::usage, "{}: no token is the byte 0x{:02x}: texts with it could not be encoded", parts_.source,
                missing - bytes.begin());
  }
  bpe_ = std::make_unique<Bpe>(parts_.tokens, parts_.merges, parts_.ignore_merges);
  size_t size = parts_.tokens.size();
  for (const AddedToken& added : parts_.added) size = std::max(size, static_cast<size_t>(added.id) + 1);
  added_by_id_.resize(size);
  for (size_t i = 0; i < parts_.added.size(); ++i) {
    const AddedToken& added = parts_.added[i];
    added_by_id_[static_cast<size_t>(added.id)] = &added;
    std::string content = added.content;
    if (added.normalized && parts_.nfc) {
      std::string normalized;
      if (normalize_nfc(content, normalized)) content = normalized;
    }
    (added.normalized ? normalized_tokens_ : raw_tokens_).add(content, static_cast<int32_t>(i));
    if (added.content.find(' ') != std::string::npos) can_cut_ = false;
  }
  // With a space put before a text, a text cut in two would have two of them.
  if (parts_.add_prefix_space) can_cut_ = false;
  for (const Stage& stage : parts_.stages) {
    if (std::holds_alternative<RegexStage>(stage)) can_cut_ = false;
  }
  // Digits alone part no words.
  if (!std::any_of(parts_.stages.begin(), parts_.stages.end(),
                   [](const Stage& stage) { return std::holds_alternative<PatternKind>(stage); })) {
    can_cut_ = false;
  }
  vocab_size_ = static_cast<int64_t>(size);
}

Tokenizer::Tokenizer(std::unique_ptr<const SentencePiece> model, std::string source)
    : sentencepiece_(std::move(model)), vocab_size_(sentencepiece_->vocab_size()), can_cut_(false) {
  parts_.source = std::move(source);
}

std::optional<int32_t> Tokenizer::id_of(std::string_view text) const {
  for (const AddedToken& added : parts_.added) {
    if (added.content == text) return added.id;
  }
  for (size_t id = 0; id < parts_.tokens.size(); ++id) {
    if (!text.empty() && parts_.tokens[id] == text) return static_cast<int32_t>(id);
  }
  return std::nullopt;
}

std::optional<int32_t> Tokenizer::end_of_document_id() const {
  if (is_bytes()) return end_of_document;
  if (sentencepiece_) return sentencepiece_->end_id();
  for (const std::string_view name : ends_of_document) {
    for (const AddedToken& added : parts_.added) {
      if (added.special && added.content == name) return added.id;
    }
  }
  return std::nullopt;
}

bool Tokenizer::has(int64_t id) const {
  if (id < 0 || id >= vocab_size_) return false;
  const auto index = static_cast<size_t>(id);
  return is_bytes() || sentencepiece_ || added_by_id_[index] != nullptr ||
         (index < parts_.tokens.size() && !parts_.tokens[index].empty());
}

std::string_view Tokenizer::text_of(int32_t id) const {
  const auto index = static_cast<size_t>(id);
  if (!has(id)) throw Error(ExitCode::data, "{} is no token of {}", id, is_bytes() ? "tokenizer bytes" : parts_.source);
  if (is_bytes()) return std::string_view(bytes_text_).substr(index, id == end_of_document ? 0 : 1);
  if (sentencepiece_) return sentencepiece_->text_of(id);
  const AddedToken* const added = added_by_id_[index];
  return added != nullptr ? std::string_view(added->content) : std::string_view(parts_.tokens[index]);
}

std::vector<int32_t> Tokenizer::text_bytes() const {
  std::vector<int32_t> bytes(static_cast<size_t>(vocab_size_), 0);
  for (size_t id = 0; id < bytes.size(); ++id) {
    const auto token = static_cast<int32_t>(id);
    const bool special = sentencepiece_ ? sentencepiece_->is_special(token)
                                        : !is_bytes() && added_by_id_[id] != nullptr && added_by_id_[id]->special;
    if (has(token) && !special) bytes[id] = static_cast<int32_t>(text_of(token).size());
  }
  return bytes;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  if (sentencepiece_) {
    for (const int32_t id : ids) text_of(id);  // each is a token
    return sentencepiece_->decode(ids);
  }
  std::string text;
  for (const int32_t id : ids) text += text_of(id);
  return text;
}

size_t Tokenizer::last_safe_cut(std::string_view text) const {
  if (is_bytes()) return whole_characters_size(text);
  return can_cut_ ? gptrain::last_safe_cut(text) : 0;
}

void Tokenizer::Finder::add(std::string_view content, int32_t index) {
  starts_[static_cast<uint8_t>(content[0])] = true;
  uint32_t node = 0;
  for (const char byte : content) {
    auto& children = nodes_[node].children;
    const auto found = std::find_if(children.begin(), children.end(), [&](const auto& c) { return c.first == byte; });
    if (found != children.end()) {
      node = found->second;
      continue;
    }
    const auto added = static_cast<uint32_t>(nodes_.size());
    children.emplace_back(byte, added);
    nodes_.emplace_back();
    node = added;
  }
  if (nodes_[node].index < 0) nodes_[node].index = index;
}

Tokenizer::Finder::Found Tokenizer::Finder::find(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<uint8_t>(text[begin])]) continue;
    Found best{begin, begin, -1};
    uint32_t node = 0;
    for (size_t at = begin; at < text.size(); ++at) {
      const auto& children = nodes_[node].children;
      const auto found =
          std::find_if(children.begin(), children.end(), [&](const auto& child) { return child.first == text[at]; });
      if (found == children.end()) break;
      node = found->second;
      if (nodes_[node].index >= 0) best = {begin, at + 1, nodes_[node].index};
    }
    if (best.index >= 0) return best;
  }
  return {text.size(), text.size(), -1};
}

}  // namespace gptrain
