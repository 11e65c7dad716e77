// Models of SentencePiece, by its own library; a build without it refuses them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gptrain {

// Immutable; safe from several threads.
class SentencePiece {
 public:
  // `model`: the bytes of a .model file. Throws Error(usage), naming the source, for what is none, and in a build without
  // the library.
  SentencePiece(std::string model, const std::string& source);
  ~SentencePiece();
  SentencePiece(const SentencePiece&) = delete;
  SentencePiece& operator=(const SentencePiece&) = delete;

  const std::string& model() const { return model_; }
  int64_t vocab_size() const { return static_cast<int64_t>(texts_.size()); }
  std::optional<int32_t> end_id() const { return end_id_; }  // of </s>
  // What the library's Encode gives: without tokens for the begin and the end of a text.
  void encode(std::string_view text, std::vector<int32_t>& ids) const;
  // What its Decode gives.
  std::string decode(std::span<const int32_t> ids) const;
  // What a token adds to a text, with spaces as such; the name of one that stands for no text.
  const std::string& text_of(int32_t id) const { return texts_[static_cast<size_t>(id)]; }
  bool is_special(int32_t id) const { return special_[static_cast<size_t>(id)]; }

 private:
  struct Impl;

  std::string model_;
  std::vector<std::string> texts_;  // by id
  std::vector<bool> special_;
  std::optional<int32_t> end_id_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gptrain
