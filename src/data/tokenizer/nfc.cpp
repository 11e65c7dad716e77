#include <algorithm>
#include <iterator>
#include <unordered_map>

#include "data/tokenizer/unicode.h"

namespace gptrain::inline data {
namespace {

constexpr uint32_t combining_pairs[] = {
#include "data/tokenizer/nfc_combining.inc"
};
constexpr uint32_t decomposition_triples[] = {
#include "data/tokenizer/nfc_decompositions.inc"
};
// Full compatibility decompositions: (number of characters << 24 | code point), then those characters.
constexpr uint32_t compatibility_runs[] = {
#include "data/tokenizer/nfkc_decompositions.inc"
};
constexpr uint32_t composes_bit = 1U << 31;

// Constants for composing Hangul syllables (Unicode 16, section 3.12).
constexpr uint32_t syllables = 0xAC00;
constexpr uint32_t leads = 0x1100;
constexpr uint32_t vowels = 0x1161;
constexpr uint32_t tails = 0x11A7;
constexpr uint32_t num_leads = 19;
constexpr uint32_t num_vowels = 21;
constexpr uint32_t num_tails = 28;
constexpr uint32_t num_syllables = num_leads * num_vowels * num_tails;

bool is_within(uint32_t code, uint32_t first, uint32_t count) { return code - first < count; }

struct Tables {
  std::vector<uint8_t> combining = std::vector<uint8_t>(num_code_points);
  std::vector<bool> may_change = std::vector<bool>(num_code_points);  // true: a text with it may not be NFC
  std::unordered_map<uint32_t, std::pair<uint32_t, uint32_t>> decompositions;
  std::unordered_map<uint64_t, uint32_t> compositions;
  std::unordered_map<uint32_t, size_t> compatibility;  // index in compatibility_runs

  Tables() {
    for (const uint32_t pair : combining_pairs) {
      combining[pair >> 8] = static_cast<uint8_t>(pair & 0xFF);
      may_change[pair >> 8] = true;
    }
    for (size_t i = 0; i + 2 < std::size(decomposition_triples); i += 3) {
      const uint32_t code = decomposition_triples[i] & ~composes_bit;
      const uint32_t first = decomposition_triples[i + 1];
      const uint32_t second = decomposition_triples[i + 2];
      decompositions[code] = {first, second};
      if ((decomposition_triples[i] & composes_bit) != 0) {
        compositions[uint64_t{first} << 32 | second] = code;
        may_change[second] = true;
      } else {
        may_change[code] = true;
      }
    }
    for (size_t i = 0; i < std::size(compatibility_runs); i += 1 + (compatibility_runs[i] >> 24)) {
      compatibility[compatibility_runs[i] & 0xFFFFFF] = i;
    }
    std::fill_n(may_change.begin() + vowels, num_vowels, true);
    std::fill_n(may_change.begin() + tails + 1, num_tails - 1, true);
  }
};

const Tables& tables() {
  static const Tables tables;
  return tables;
}

void decompose(uint32_t code, bool compatibly, std::vector<uint32_t>& out) {
  if (compatibly) {
    if (const auto found = tables().compatibility.find(code); found != tables().compatibility.end()) {
      const uint32_t* const first = compatibility_runs + found->second + 1;
      out.insert(out.end(), first, first + (compatibility_runs[found->second] >> 24));
      return;
    }
  }
  if (is_within(code, syllables, num_syllables)) {
    const uint32_t index = code - syllables;
    out.push_back(leads + index / (num_vowels * num_tails));
    out.push_back(vowels + index % (num_vowels * num_tails) / num_tails);
    if (index % num_tails != 0) out.push_back(tails + index % num_tails);
    return;
  }
  const auto found = tables().decompositions.find(code);
  if (found == tables().decompositions.end()) {
    out.push_back(code);
    return;
  }
  decompose(found->second.first, compatibly, out);
  if (found->second.second != 0) decompose(found->second.second, compatibly, out);
}

// Returns the primary composite of a pair; 0 if there is none.
uint32_t compose(uint32_t first, uint32_t second) {
  if (is_within(first, leads, num_leads) && is_within(second, vowels, num_vowels)) {
    return syllables + ((first - leads) * num_vowels + (second - vowels)) * num_tails;
  }
  if (is_within(first, syllables, num_syllables) && (first - syllables) % num_tails == 0 &&
      is_within(second, tails + 1, num_tails - 1)) {
    return first + (second - tails);
  }
  const auto found = tables().compositions.find(uint64_t{first} << 32 | second);
  return found == tables().compositions.end() ? 0 : found->second;
}

uint8_t combining_class(uint32_t code) { return code < num_code_points ? tables().combining[code] : 0; }

void order_canonically(std::vector<uint32_t>& codes) {
  for (auto run = codes.begin(); run != codes.end();) {
    if (combining_class(*run) == 0) {
      ++run;
      continue;
    }
    const auto end = std::find_if(run, codes.end(), [](uint32_t code) { return combining_class(code) == 0; });
    std::stable_sort(run, end, [](uint32_t a, uint32_t b) { return combining_class(a) < combining_class(b); });
    run = end;
  }
}

void compose_all(std::vector<uint32_t>& codes) {
  size_t size = 0;
  size_t starter = SIZE_MAX;
  int last_class = -1;  // combining class of the last character after the starter; -1: none
  for (const uint32_t code : codes) {
    const uint8_t own = combining_class(code);
    if (starter != SIZE_MAX && last_class < static_cast<int>(own)) {
      if (const uint32_t composite = compose(codes[starter], code); composite != 0) {
        codes[starter] = composite;
        continue;
      }
    }
    if (own == 0) {
      starter = size;
      last_class = -1;
    } else {
      last_class = own;
    }
    codes[size++] = code;
  }
  codes.resize(size);
}

// Decodes to code points; a byte that is not UTF-8 becomes num_code_points + its value, which neither combines nor
// decomposes.
std::vector<uint32_t> decode_all(std::string_view text) {
  std::vector<uint32_t> codes;
  while (!text.empty()) {
    const DecodedCharacter character = decode_utf8(text);
    codes.push_back(character.code_point < num_code_points ? character.code_point
                                                           : num_code_points + static_cast<uint8_t>(text[0]));
    text.remove_prefix(character.length);
  }
  return codes;
}

bool may_need_change(std::string_view text, bool compatibly) {
  const Tables& known = tables();
  // No character below U+0300 (first byte 0xCC) combines; none below U+00A0 (0xC2) has a compatibility decomposition.
  const uint8_t least = compatibly ? 0xC2 : 0xCC;
  for (size_t at = 0; at < text.size();) {
    if (static_cast<uint8_t>(text[at]) < least) {
      ++at;
      continue;
    }
    const DecodedCharacter character = decode_utf8(text.substr(at));
    if (character.code_point < num_code_points && known.may_change[character.code_point]) return true;
    if (compatibly && known.compatibility.contains(character.code_point)) return true;
    at += character.length;
  }
  return false;
}

bool compose_text(std::string_view text, bool compatibly, std::string& normalized) {
  if (!may_need_change(text, compatibly)) return false;
  std::vector<uint32_t> codes;
  for (const uint32_t code : decode_all(text)) decompose(code, compatibly, codes);
  order_canonically(codes);
  compose_all(codes);
  normalized.clear();
  for (const uint32_t code : codes) {
    if (code < num_code_points) {
      append_utf8(normalized, code);
    } else {
      normalized += static_cast<char>(code - num_code_points);
    }
  }
  return normalized != text;
}

}  // namespace

bool normalize_nfc(std::string_view text, std::string& normalized) { return compose_text(text, false, normalized); }

bool normalize_nfkc(std::string_view text, std::string& normalized) { return compose_text(text, true, normalized); }

}  // namespace gptrain::data
