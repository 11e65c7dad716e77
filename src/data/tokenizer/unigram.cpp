#include "data/tokenizer/unigram.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <utility>

#include "data/tokenizer/unicode.h"

namespace gptrain::inline data {

std::vector<int32_t> byte_tokens(const std::unordered_map<std::string, int32_t>& ids, std::string_view character) {
  std::vector<int32_t> found;
  for (const char byte : character) {
    const auto id = ids.find(fmt::format("<0x{:02X}>", static_cast<uint8_t>(byte)));
    if (id == ids.end()) return {};
    found.push_back(id->second);
  }
  return found;
}

Unigram::Unigram(const std::vector<std::string>& tokens, UnigramParts parts) : parts_(std::move(parts)), id_at_(1, -1) {
  constexpr double unknown_penalty = 10;
  double least = std::numeric_limits<double>::max();
  for (size_t id = 0; id < parts_.scores.size(); ++id) {
    least = std::min(least, parts_.scores[id]);
    if (tokens[id].empty()) continue;
    ids_[tokens[id]] = static_cast<int32_t>(id);
    uint32_t node = 0;
    for (const char byte : tokens[id]) {
      const auto [child, is_new] = children_.emplace(uint64_t{node} << 8 | static_cast<uint8_t>(byte), id_at_.size());
      if (is_new) id_at_.push_back(-1);
      node = child->second;
    }
    id_at_[node] = static_cast<int32_t>(id);
  }
  unknown_score_ = least - unknown_penalty;
}

void Unigram::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  struct Best {
    double score = 0;
    size_t begin = 0;
    int32_t id = -1;  // -1: the unknown token
    bool is_known = false;
    bool is_reached = false;
  };
  std::vector<Best> best(piece.size() + 1);
  const auto offer = [&](size_t begin, size_t end, double score, int32_t id, bool is_known) {
    Best& there = best[end];
    if (there.is_reached && !(score > there.score)) return;
    there = {.score = score, .begin = begin, .id = id, .is_known = is_known, .is_reached = true};
  };
  for (size_t at = 0; at < piece.size();) {
    const size_t length = decode_utf8(piece.substr(at)).length;
    bool has_character = false;
    uint32_t node = 0;
    for (size_t end = at; end < piece.size(); ++end) {
      const auto child = children_.find(uint64_t{node} << 8 | static_cast<uint8_t>(piece[end]));
      if (child == children_.end()) break;
      node = child->second;
      const int32_t id = id_at_[node];
      if (id < 0) continue;
      offer(at, end + 1, best[at].score + parts_.scores[id], id, id != parts_.unknown);
      has_character = has_character || end + 1 - at == length;
    }
    if (!has_character) offer(at, at + length, best[at].score + unknown_score_, -1, false);
    at += length;
  }
  // Collects the pieces from the end to the start. Joins consecutive unknown parts.
  std::vector<std::string_view> pieces;
  bool after_unknown = false;
  for (size_t end = piece.size(); end > 0;) {
    const Best& there = best[end];
    const std::string_view part = piece.substr(there.begin, end - there.begin);
    if (!there.is_known && after_unknown) {
      pieces.back() = piece.substr(there.begin, pieces.back().size() + part.size());
    } else {
      pieces.push_back(part);
    }
    after_unknown = !there.is_known;
    end = there.begin;
  }
  std::reverse(pieces.begin(), pieces.end());
  ids.clear();
  for (const std::string_view part : pieces) {
    const auto known = ids_.find(std::string(part));
    if (known != ids_.end()) {
      ids.push_back(known->second);
    } else {
      append_unknown(part, ids);
    }
  }
}

void Unigram::append_unknown(std::string_view text, std::vector<int32_t>& ids) const {
  const std::vector<int32_t> bytes = parts_.byte_fallback ? byte_tokens(ids_, text) : std::vector<int32_t>();
  if (!bytes.empty()) {
    ids.insert(ids.end(), bytes.begin(), bytes.end());
  } else if (parts_.unknown) {
    ids.push_back(*parts_.unknown);
  }
}

}  // namespace gptrain::data
