#include "data/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"
#include "data/tokenizer/unicode.h"

namespace gptrain::inline data {
namespace {

constexpr std::array<std::string_view, 5> ends_of_document = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>",
                                                              "<|eot|>"};

// Returns the text of a token: "<0x0A>" is a newline, each SentencePiece symbol a space.
std::string text_of_characters(std::string_view token) {
  constexpr std::string_view space_symbol = "\u2581";
  constexpr std::string_view start = "<0x";
  unsigned byte = 0;
  if (token.size() == 6 && token.starts_with(start) && token[5] == '>' &&
      std::from_chars(token.data() + start.size(), token.data() + 5, byte, 16).ptr == token.data() + 5) {
    return {static_cast<char>(byte)};
  }
  std::string text;
  for (size_t at = 0; at < token.size();) {
    const bool is_space = token.substr(at).starts_with(space_symbol);
    text += is_space ? ' ' : token[at];
    at += is_space ? space_symbol.size() : 1;
  }
  return text;
}

}  // namespace

Tokenizer::Tokenizer() {
  for (int byte = 0; byte < 256; ++byte) bytes_text_ += static_cast<char>(byte);
}

// Throws Error(usage) unless every byte of UTF-8 is a token: other texts could not be encoded.
void Tokenizer::check_bytes() const {
  if (!parts_.byte_level) return;
  std::array<bool, 256> bytes{};
  for (const std::string& token : parts_.tokens) {
    if (token.size() == 1) bytes[static_cast<uint8_t>(token[0])] = true;
  }
  for (size_t byte = 0; byte < bytes.size(); ++byte) {
    const bool is_of_utf8 = byte != 0xC0 && byte != 0xC1 && byte < 0xF5;
    if (bytes[byte] || !is_of_utf8) continue;
    throw Error(ExitCode::usage, "{}: no token is the byte 0x{:02x}: texts with it could not be encoded", parts_.source,
                byte);
  }
}

bool Tokenizer::normalize_text(std::string_view text, std::string& normalized) const {
  return parts_.nfc ? normalize_nfc(text, normalized) : normalize(parts_.normalizer, text, normalized);
}

void Tokenizer::encode_piece(std::string_view piece, Bpe::Scratch& scratch) const {
  if (unigram_) {
    unigram_->encode(piece, scratch.ids);
  } else {
    bpe_->encode(piece, scratch);
  }
}

Tokenizer::Tokenizer(TokenizerParts parts) : parts_(std::move(parts)) {
  check_bytes();
  if (!parts_.unigram.scores.empty()) {
    unigram_ = std::make_unique<Unigram>(parts_.tokens, parts_.unigram);
  } else if (parts_.byte_level) {
    bpe_ = std::make_unique<Bpe>(parts_.tokens, parts_.merges, parts_.ignore_merges);
  } else {
    bpe_ = std::make_unique<Bpe>(parts_.tokens, parts_.merges, parts_.ignore_merges, parts_.characters);
  }
  if (!parts_.byte_level) {
    for (const std::string& token : parts_.tokens) texts_.push_back(text_of_characters(token));
  }
  size_t size = parts_.tokens.size();
  for (const AddedToken& added : parts_.added) size = std::max(size, static_cast<size_t>(added.id) + 1);
  added_by_id_.resize(size);
  for (size_t i = 0; i < parts_.added.size(); ++i) {
    const AddedToken& added = parts_.added[i];
    added_by_id_[added.id] = &added;
    std::string content = added.content;
    if (added.normalized) {
      std::string normalized;
      if (normalize_text(content, normalized)) content = normalized;
    }
    (added.normalized ? normalized_tokens_ : raw_tokens_).add(content, static_cast<int32_t>(i));
    if (added.content.find(' ') != std::string::npos || added.takes_left_space || added.takes_right_space)
      can_cut_ = false;
  }
  // A prefix, a normalizer or a model of characters may treat the parts of a cut text differently from the whole.
  if (parts_.add_prefix_space || !parts_.byte_level || !parts_.normalizer.empty()) can_cut_ = false;
  for (const Stage& stage : parts_.stages) {
    if (std::holds_alternative<RegexStage>(stage)) can_cut_ = false;
  }
  // Only the well-known patterns are known to split before a word; a digits stage does not.
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
  for (int32_t id = 0; sentencepiece_ && id < vocab_size_; ++id) {
    if (sentencepiece_->text_of(id) == text) return id;
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
  if (added != nullptr) return added->content;
  return parts_.byte_level ? parts_.tokens[index] : texts_[index];
}

std::vector<int32_t> Tokenizer::text_bytes() const {
  std::vector<int32_t> bytes(vocab_size_, 0);
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
    for (const int32_t id : ids) text_of(id);  // throws if an id is no token
    return sentencepiece_->decode(ids);
  }
  std::string text;
  for (const int32_t id : ids) text += text_of(id);
  if (parts_.strips_first_space && text.starts_with(' ')) text.erase(0, 1);
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

}  // namespace gptrain::data
