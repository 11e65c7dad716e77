#include "data/tokenizer/bpe_trainer.h"

#include <algorithm>
#include <map>
#include <queue>

#include "base/error.h"
#include "data/tokenizer/files.h"

namespace gptrain::inline data {
namespace {

constexpr int64_t progress_step = 256;

struct Word {
  std::vector<int32_t> ids;
  int64_t count;
};

struct KeyHash {
  size_t operator()(uint64_t key) const {
    key *= 0x9E3779B97F4A7C15U;
    return static_cast<size_t>(key ^ key >> 32);
  }
};

// A candidate pair for the next merge, with the words that contain it. Its count may have changed since.
struct Candidate {
  int64_t count;
  uint64_t pair;
  std::vector<uint32_t> words;
};

struct LessUrgent {
  bool operator()(const Candidate& a, const Candidate& b) const {
    return a.count != b.count ? a.count < b.count : a.pair > b.pair;
  }
};

class Trainer {
 public:
  explicit Trainer(const std::vector<std::string>& special) {
    for (const std::string& content : special) {
      parts_.added.push_back({static_cast<int32_t>(parts_.tokens.size()), content, true, false});
      parts_.tokens.emplace_back();
    }
    // Characters of the alphabet compare by their UTF-8.
    std::map<std::string, char> alphabet;
    for (int byte = 0; byte < 256; ++byte) {
      const std::string bytes(1, static_cast<char>(byte));
      alphabet.emplace(to_byte_level(bytes), bytes[0]);
    }
    for (const auto& [character, byte] : alphabet) {
      byte_ids_[static_cast<uint8_t>(byte)] = static_cast<int32_t>(parts_.tokens.size());
      add_token(std::string(1, byte));
    }
  }

  void add_words(const PieceCounts& pieces) {
    words_.reserve(pieces.size());
    for (const auto& [piece, count] : pieces) {
      Word word{{}, count};
      for (const char byte : piece) word.ids.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
      for (size_t i = 0; i + 1 < word.ids.size(); ++i) {
        count_pair(pair_key(word.ids[i], word.ids[i + 1]), count, static_cast<uint32_t>(words_.size()));
      }
      words_.push_back(std::move(word));
    }
    queue_touched();
  }

  TokenizerParts merge_until(int64_t vocab_size, const std::function<void(int64_t, int64_t)>& progress) {
    while (static_cast<int64_t>(parts_.tokens.size()) < vocab_size && !queue_.empty()) {
      // priority_queue gives only const access to its top.
      Candidate best = std::move(const_cast<Candidate&>(queue_.top()));
      queue_.pop();
      if (const int64_t count = counts_[best.pair]; count != best.count) {
        best.count = count;
        queue_.push(std::move(best));
        continue;
      }
      if (best.count < 1) break;
      merge(best);
      const auto size = static_cast<int64_t>(parts_.tokens.size());
      if (progress && size % progress_step == 0) progress(size, vocab_size);
    }
    return std::move(parts_);
  }

 private:
  int32_t add_token(const std::string& bytes) {
    const auto [entry, is_new] = ids_.emplace(bytes, static_cast<int32_t>(parts_.tokens.size()));
    if (is_new) parts_.tokens.push_back(bytes);
    return entry->second;
  }

  void count_pair(uint64_t pair, int64_t count, uint32_t word) {
    counts_[pair] += count;
    std::vector<uint32_t>& words = touched_[pair];
    if (words.empty() || words.back() != word) words.push_back(word);
  }

  void queue_touched() {
    for (auto& [pair, words] : touched_) {
      if (const int64_t count = counts_[pair]; count > 0) queue_.push({count, pair, std::move(words)});
    }
    touched_.clear();
  }

  void merge(const Candidate& best) {
    const auto left = static_cast<int32_t>(best.pair >> 32);
    const auto right = static_cast<int32_t>(best.pair & 0xFFFFFFFFU);
    const std::string bytes = parts_.tokens[left] + parts_.tokens[right];
    const int32_t merged = add_token(bytes);
    parts_.merges.push_back({left, right, merged});
    for (const uint32_t index : best.words) {
      Word& word = words_[index];
      std::vector<int32_t>& ids = word.ids;
      size_t size = 0;
      for (size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] != left || i + 1 == ids.size() || ids[i + 1] != right) {
          ids[size++] = ids[i];
          continue;
        }
        if (size > 0) {
          counts_[pair_key(ids[size - 1], left)] -= word.count;
          count_pair(pair_key(ids[size - 1], merged), word.count, index);
        }
        if (i + 2 < ids.size()) {
          counts_[pair_key(right, ids[i + 2])] -= word.count;
          count_pair(pair_key(merged, ids[i + 2]), word.count, index);
        }
        ids[size++] = merged;
        ++i;
      }
      ids.resize(size);
    }
    queue_touched();
  }

  TokenizerParts parts_;
  std::array<int32_t, 256> byte_ids_{};
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<Word> words_;
  std::unordered_map<uint64_t, int64_t, KeyHash> counts_;
  std::unordered_map<uint64_t, std::vector<uint32_t>, KeyHash> touched_;
  std::priority_queue<Candidate, std::vector<Candidate>, LessUrgent> queue_;
};

}  // namespace

TokenizerParts train_bpe(const PieceCounts& pieces, int64_t vocab_size, const std::vector<std::string>& special,
                         const std::function<void(int64_t, int64_t)>& progress) {
  const auto least = static_cast<int64_t>(special.size()) + 256;
  if (vocab_size < least) {
    throw Error(ExitCode::usage, "a vocabulary of {} has no room for 256 bytes and {} special tokens: at least {}",
                vocab_size, special.size(), least);
  }
  Trainer trainer(special);
  trainer.add_words(pieces);
  return trainer.merge_until(vocab_size, progress);
}

}  // namespace gptrain::data
