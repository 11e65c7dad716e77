#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "data/tokenizer/piece_cache.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/unicode.h"

namespace gptrain::inline data {
namespace {

using ShortCache = PieceCache<2>;
using LongCache = PieceCache<4>;
constexpr size_t log2_short_entries = 19;
constexpr size_t log2_long_entries = 13;

}  // namespace

struct Encoder::Impl {
  Impl(std::shared_ptr<const Tokenizer> tokenizer_, std::optional<int32_t> end_token_)
      : tokenizer(std::move(tokenizer_)), end_token(end_token_) {
    if (tokenizer->is_bytes() || tokenizer->sentencepiece() != nullptr) return;
    for (const Stage& stage : tokenizer->parts().stages) {
      if (const auto* regex = std::get_if<RegexStage>(&stage)) {
        regexes.emplace_back(regex->regex, tokenizer->parts().source);
      }
    }
  }

  // Makes room for the ids of a piece after the first `used` ids: a piece of n bytes needs n + inline_ids.
  void make_room(size_t bytes) {
    if (ids.size() - used < bytes + ShortCache::inline_ids) {
      ids.resize(std::max(ids.size() * 2, used + bytes + ShortCache::inline_ids));
    }
  }

  template <typename Cache>
  size_t encode_remembered(Cache& cache, std::string_view piece, const typename Cache::Key& key) {
    if (const size_t count = cache.find(key, ids.data() + used); count != 0) return count;
    tokenizer->encode_piece(piece, scratch);
    cache.put(key, scratch.ids);
    std::copy(scratch.ids.begin(), scratch.ids.end(), ids.begin() + static_cast<std::ptrdiff_t>(used));
    return scratch.ids.size();
  }

  // REQUIRES: `readable` bytes can be read from the start of the piece.
  void encode_piece(std::string_view piece, size_t readable) {
    if (piece.size() <= ShortCache::max_bytes) {
      used += encode_remembered(short_pieces, piece, ShortCache::key_of(piece, readable));
    } else if (piece.size() <= LongCache::max_bytes) {
      used += encode_remembered(long_pieces, piece, LongCache::key_of(piece, readable));
    } else {
      tokenizer->encode_piece(piece, scratch);
      std::copy(scratch.ids.begin(), scratch.ids.end(), ids.begin() + static_cast<std::ptrdiff_t>(used));
      used += scratch.ids.size();
    }
  }

  void piece(std::string_view text, size_t stage, size_t regex) {
    if (text.empty()) return;
    if (stage == tokenizer->parts().stages.size()) {
      make_room(text.size());
      encode_piece(text, text.size());
    } else {
      split(text, stage, regex);
    }
  }

  // Splits `text` by a stage and its pieces by all later stages, then encodes the pieces. `regex`: number of regular
  // expressions among the earlier stages.
  void split(std::string_view text, size_t stage_number, size_t regex) {
    const Stage& stage = tokenizer->parts().stages[stage_number];
    const bool is_last = stage_number + 1 == tokenizer->parts().stages.size();
    if (const auto* kind = std::get_if<PatternKind>(&stage)) {
      const PieceScanner scan = scanner_of_pattern(*kind);
      if (is_last) return encode_scanned(text, scan);
      for (size_t at = 0; at < text.size();) {
        const size_t length = scan(text, at);
        piece(text.substr(at, length), stage_number + 1, regex);
        at += length;
      }
    } else if (const auto* own = std::get_if<RegexStage>(&stage)) {
      if (const size_t invalid = find_invalid_utf8(text); invalid < text.size()) {
        throw Error(ExitCode::data, "a text is not UTF-8: byte 0x{:02x} {} bytes into a piece",
                    static_cast<uint8_t>(text[invalid]), invalid);
      }
      split_by_regex(text, stage_number, regex, own->behavior);
    } else {
      split_digits(text, stage_number, regex);
    }
  }

  void split_by_regex(std::string_view text, size_t stage, size_t regex, SplitBehavior behavior) {
    const auto put = [&](size_t begin, size_t end) { piece(text.substr(begin, end - begin), stage + 1, regex + 1); };
    size_t begin = 0;  // start of the text that is in no piece yet
    for (size_t at = 0; at < text.size();) {
      const Regex::Match match = regexes[regex].find(text, at);
      at = match.end;
      switch (behavior) {
        case SplitBehavior::merged_with_previous:
          put(begin, match.end);
          begin = match.end;
          continue;
        case SplitBehavior::merged_with_next:
          put(begin, match.begin);
          begin = match.begin;
          continue;
        case SplitBehavior::isolated:
        case SplitBehavior::only_matches:
        case SplitBehavior::removed:
          break;
      }
      if (behavior != SplitBehavior::only_matches) put(begin, match.begin);
      if (behavior != SplitBehavior::removed) put(match.begin, match.end);
      begin = match.end;
    }
    put(begin, text.size());
  }

  // Encodes the pieces of a scanner. Prefetches the cache entries of a few pieces ahead, so that their loads overlap.
  void encode_scanned(std::string_view text, PieceScanner scan) {
    struct Ahead {
      std::string_view piece;
      ShortCache::Key key;
    };
    std::array<Ahead, 16> ahead;
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      size_t count = 0;
      while (count < ahead.size() && at < text.size()) {
        const size_t length = scan(text, at);
        Ahead& next = ahead[count++];
        next.piece = text.substr(at, length);
        if (length <= ShortCache::max_bytes) {
          next.key = ShortCache::key_of(next.piece, text.size() - at);
          short_pieces.prefetch(next.key);
        }
        at += length;
      }
      make_room(at - begin);
      for (const Ahead& next : std::span(ahead).first(count)) {
        if (next.piece.size() <= ShortCache::max_bytes) {
          used += encode_remembered(short_pieces, next.piece, next.key);
        } else {
          encode_piece(next.piece, next.piece.size());
        }
      }
    }
  }

  void split_digits(std::string_view text, size_t stage_number, size_t regex) {
    const uint8_t* classes = character_classes();
    size_t begin = 0;
    for (size_t at = 0; at < text.size();) {
      const DecodedCharacter character = decode_utf8(text.substr(at));
      if (classes[character.code_point] == static_cast<uint8_t>(CharacterClass::number)) {
        piece(text.substr(begin, at - begin), stage_number + 1, regex);
        piece(text.substr(at, character.length), stage_number + 1, regex);
        begin = at + character.length;
      }
      at += character.length;
    }
    piece(text.substr(begin), stage_number + 1, regex);
  }

  // Returns the text with a symbol for each space, and one in front.
  std::string with_metaspace(std::string_view text, const Metaspace& metaspace) const {
    std::string result;
    for (const char c : text) {
      if (c == ' ')
        result += metaspace.symbol;
      else
        result += c;
    }
    const bool prepends = metaspace.prepend == Metaspace::Prepend::always ||
                          (metaspace.prepend == Metaspace::Prepend::first && at_text_start);
    return prepends && !result.starts_with(metaspace.symbol) ? metaspace.symbol + result : result;
  }

  void encode_plain(std::string_view text) {
    if (text.empty()) return;
    if (const auto& metaspace = tokenizer->parts().metaspace) {
      const std::string with_symbols = with_metaspace(text, *metaspace);
      at_text_start = false;
      return piece(with_symbols, 0, 0);
    }
    if (tokenizer->parts().add_prefix_space && text[0] != ' ') {
      const std::string with_space = ' ' + std::string(text);
      piece(with_space, 0, 0);
    } else {
      piece(text, 0, 0);
    }
  }

  static bool is_space(const DecodedCharacter& character) {
    return character.code_point < num_code_points &&
           (class_bit(static_cast<CharacterClass>(character_classes()[character.code_point])) & space_classes) != 0;
  }

  static size_t end_of_space(std::string_view text, size_t at) {
    while (at < text.size()) {
      const DecodedCharacter character = decode_utf8(text.substr(at));
      if (!is_space(character)) break;
      at += character.length;
    }
    return at;
  }

  // Returns the start of the white space that ends at `end`, at least `from`.
  static size_t begin_of_space(std::string_view text, size_t from, size_t end) {
    size_t begin = end;
    for (size_t at = from; at < end;) {
      const DecodedCharacter character = decode_utf8(text.substr(at));
      if (!is_space(character)) {
        begin = end;
      } else if (begin == end) {
        begin = at;
      }
      at += character.length;
    }
    return begin;
  }

  // Encodes the added tokens of `finder` in `text`, and the text between them with `rest`.
  template <typename Rest>
  void find_added(const Tokenizer::Finder& finder, std::string_view text, const Rest& rest) {
    if (finder.empty()) return rest(text);
    size_t begin = 0;
    for (size_t from = 0; begin < text.size();) {
      const Tokenizer::Finder::Found found = finder.find(text, from);
      if (found.index >= 0) {
        const AddedToken& added = tokenizer->parts().added[found.index];
        const bool is_special = added.special || added.id == end_token;
        if (is_special) {
          ++num_special;
          last_special = added.content;
        }
        if (is_special && special_as_text) {
          from = found.end;
          continue;
        }
        const size_t end = added.takes_left_space ? begin_of_space(text, begin, found.begin) : found.begin;
        rest(text.substr(begin, end - begin));
        at_text_start = false;
        make_room(1);
        ids[used++] = added.id;
        num_end_tokens += added.id == end_token ? 1 : 0;
        begin = from = added.takes_right_space ? end_of_space(text, found.end) : found.end;
        continue;
      }
      rest(text.substr(begin));
      begin = from = found.end;
    }
  }

  void encode(std::string_view text) {
    find_added(tokenizer->raw_tokens_, text, [&](std::string_view raw) {
      const bool changed = tokenizer->normalize_text(raw, normalized);
      find_added(tokenizer->normalized_tokens_, changed ? normalized : raw,
                 [&](std::string_view plain) { encode_plain(plain); });
    });
  }

  void encode_sentencepiece(const SentencePiece& model, std::string_view text) {
    if (special_as_text && end_token && !model.is_special(*end_token)) {
      if (!plain_model) plain_model = model.without(*end_token, tokenizer->parts().source);
      plain_model->encode(text, ids);
    } else {
      model.encode(text, ids);
    }
    used = ids.size();
  }

  // Counts end tokens among the ids that were not found as added tokens.
  void count_end_pieces() {
    if (!end_token) return;
    const auto all = std::count(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(used), *end_token);
    num_end_pieces = all - num_end_tokens;
    if (num_end_pieces > 0) last_special = tokenizer->text_of(*end_token);
  }

  std::shared_ptr<const Tokenizer> tokenizer;
  std::optional<int32_t> end_token;
  std::unique_ptr<const SentencePiece> plain_model;  // encodes texts without the end token; null: not needed yet
  std::vector<Regex> regexes;
  ShortCache short_pieces{log2_short_entries};
  LongCache long_pieces{log2_long_entries};
  Bpe::Scratch scratch;
  std::string normalized;
  std::vector<int32_t> ids;
  size_t used = 0;
  bool special_as_text = false;
  bool at_text_start = true;
  int64_t num_special = 0;     // found as added tokens
  int64_t num_end_tokens = 0;  // end tokens among the added tokens
  int64_t num_end_pieces = 0;  // end tokens that are ordinary pieces
  std::string_view last_special;
};

Encoder::Encoder(std::shared_ptr<const Tokenizer> tokenizer, std::optional<int32_t> end_token)
    : impl_(std::make_unique<Impl>(std::move(tokenizer), end_token)) {}

Encoder::~Encoder() = default;

std::span<const int32_t> Encoder::encode(std::string_view text, bool special_as_text) {
  impl_->used = 0;
  impl_->special_as_text = special_as_text;
  impl_->at_text_start = true;
  impl_->num_special = 0;
  impl_->num_end_tokens = 0;
  impl_->last_special = {};
  if (impl_->tokenizer->is_bytes()) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
    impl_->ids.assign(bytes, bytes + text.size());
    impl_->used = text.size();
  } else if (const SentencePiece* const model = impl_->tokenizer->sentencepiece(); model != nullptr) {
    impl_->encode_sentencepiece(*model, text);
  } else {
    impl_->encode(text);
  }
  impl_->count_end_pieces();
  return std::span<const int32_t>(impl_->ids).first(impl_->used);
}

int64_t Encoder::num_special() const { return impl_->num_special + impl_->num_end_pieces; }

bool Encoder::has_end_piece() const { return impl_->num_end_pieces > 0; }

std::string_view Encoder::special_in_text() const { return impl_->last_special; }

}  // namespace gptrain::data
