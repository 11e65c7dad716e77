// SentencePiece models, read and run by the SentencePiece library. A build without the library refuses them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gptrain::inline data {

// Immutable; thread-safe.
class SentencePiece {
 public:
  // `model`: the bytes of a .model file. Throws Error(usage), with the source, for an invalid model, and in a build
  // without the library.
  SentencePiece(std::string model, const std::string& source);
  ~SentencePiece();
  SentencePiece(const SentencePiece&) = delete;
  SentencePiece& operator=(const SentencePiece&) = delete;

  const std::string& model() const { return model_; }
  int64_t vocab_size() const { return static_cast<int64_t>(texts_.size()); }
  std::optional<int32_t> end_id() const { return end_id_; }  // id of </s>
  // Returns a model that encodes the text of piece `id` as other pieces.
  std::unique_ptr<const SentencePiece> without(int32_t id, const std::string& source) const;
  // Encodes as the library does, without begin and end tokens.
  void encode(std::string_view text, std::vector<int32_t>& ids) const;
  // Decodes as the library does.
  std::string decode(std::span<const int32_t> ids) const;
  // Returns the text that a token adds, with spaces as such; for a token without text, its name.
  const std::string& text_of(int32_t id) const { return texts_[id]; }
  bool is_special(int32_t id) const { return special_[id]; }

 private:
  struct Impl;

  std::string model_;
  std::vector<std::string> texts_;  // by id
  std::vector<bool> special_;
  std::optional<int32_t> end_id_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gptrain::data
