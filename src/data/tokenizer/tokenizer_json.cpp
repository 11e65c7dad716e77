#include "data/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/base64.h"
#include "base/error.h"
#include "base/json.h"
#include "base/json_scanner.h"

namespace gptrain::inline data {
namespace {

using nlohmann::json;

// Larger ids are a sign of damage, not of a vocabulary.
constexpr int64_t max_ids = int64_t{1} << 24;

// Returns whether the tokens with the id of `token` have its flags.
bool has_same_flags(const std::vector<AddedToken>& tokens, const AddedToken& token) {
  const auto flags = [](const AddedToken& of) {
    return std::tuple(of.takes_left_space, of.takes_right_space, of.special, of.normalized);
  };
  return std::all_of(tokens.begin(), tokens.end(),
                     [&](const AddedToken& other) { return other.id != token.id || flags(other) == flags(token); });
}

// Returns a number of a JSON text as the tokenizers library reads it: serde_json scales its digits by a power of ten,
// and rounds twice where they are more than 15. Splits of equal score depend on the last bit.
double as_tokenizers_reads(double value) {
  char text[32];
  const char* const end = std::to_chars(text, std::end(text), std::abs(value), std::chars_format::scientific).ptr;
  const std::string_view shortest(text, static_cast<size_t>(end - text));
  const size_t exponent_at = shortest.find('e');
  uint64_t digits = 0;
  int exponent = 0;
  for (const char c : shortest.substr(0, exponent_at))
    if (c != '.') digits = digits * 10 + static_cast<uint64_t>(c - '0');
  const bool has_point = exponent_at > 1;
  const char* const power = text + exponent_at + (shortest[exponent_at + 1] == '+' ? 2 : 1);
  std::from_chars(power, end, exponent);
  exponent -= has_point ? static_cast<int>(exponent_at) - 2 : 0;
  constexpr int largest_power = 308;
  auto result = static_cast<double>(digits);
  if (exponent < -largest_power) {
    result /= 1e308;
    exponent += largest_power;
  }
  double scale = 1;
  const std::string of_ten = "1e" + std::to_string(std::abs(exponent));
  std::from_chars(of_ten.data(), of_ten.data() + of_ten.size(), scale);
  return std::copysign(exponent < 0 ? result / scale : result * scale, value);
}

class Reader {
 public:
  explicit Reader(const std::string& source) { parts_.source = source; }

  TokenizerParts read(const json& root) {
    if (!root.is_object()) refuse("", "is no object");
    refuse_other_form(root);
    refuse_other_model(member(root, "model"));
    refuse_truncation(root);
    read_normalizer(member(root, "normalizer"), "normalizer");
    read_pre_tokenizer(member(root, "pre_tokenizer"), "pre_tokenizer");
    parts_.byte_level = is_byte_level_;
    const bool only_nfc = parts_.normalizer.empty() ||
                          (parts_.normalizer.size() == 1 && parts_.normalizer[0].kind == NormalizerStep::Kind::nfc);
    if (only_nfc) {
      parts_.nfc = !parts_.normalizer.empty();
      parts_.normalizer.clear();
    } else {
      is_as_written_ = false;
    }
    read_decoder(member(root, "decoder"), "decoder");
    read_model(member(root, "model"));
    read_added(member(root, "added_tokens"));
    return std::move(parts_);
  }

  // Returns true if tokenizer_json() can write an equal tokenizer.
  bool is_as_written() const { return is_as_written_ && is_byte_level_; }

  // Returns the fault of the first added token that Hugging Face tokenizers gives another id than the file does; empty
  // if there is none.
  const std::string& other_id() const { return other_id_; }

 private:
  [[noreturn]] void refuse(const std::string& path, const std::string& reason) const {
    throw Error(ExitCode::usage, "{}: {} {}", parts_.source, path.empty() ? "the file" : path, reason);
  }

  // Other files of JSON that lie beside a tokenizer.json.
  void refuse_other_form(const json& root) const {
    if (member(root, "model").is_object()) return;
    const bool has_ids = std::all_of(root.begin(), root.end(), [](const json& id) { return id.is_number_integer(); });
    if (has_ids && !root.empty()) refuse("", "is a list of tokens: name the folder that holds it and merges.txt");
    refuse("",
           "has no object \"model\": it is no tokenizer.json (tekken.json is none; take the tokenizer.json of its "
           "folder)");
  }

  // Called first: other models have normalizers and pre-tokenizers of their own. Old files leave the type out, and
  // WordPiece has a member that BPE has not.
  void refuse_other_model(const json& model) const {
    const json& type = member(model, "type");
    const bool is_wordpiece = type.is_null() && model.contains("max_input_chars_per_word");
    if (!is_wordpiece && (type.is_null() || type == "BPE" || type == "Unigram")) return;
    refuse("model.type", "is " + (is_wordpiece ? std::string("\"WordPiece\"") : json_text(type)) +
                             ", which gptrain does not support (BPE and Unigram are)");
  }

  // Padding a batch to its longest text leaves a single text unchanged, so it is allowed.
  void refuse_truncation(const json& root) const {
    const json& padding = member(root, "padding");
    const bool is_of_batches = padding.is_object() && member(padding, "strategy") == "BatchLongest" &&
                               member(padding, "pad_to_multiple_of").is_null();
    if (!padding.is_null() && !is_of_batches) refuse("padding", "is set: gptrain encodes every document as it is");
    if (!member(root, "truncation").is_null()) refuse("truncation", "is set: gptrain encodes every document whole");
  }

  static const json& member(const json& object, const char* key) {
    static const json null;
    const auto found = object.find(key);
    return found == object.end() ? null : *found;
  }

  std::string type_of(const json& value, const std::string& path) const {
    if (!value.is_object() || !member(value, "type").is_string()) refuse(path, "is no object with a type");
    return value["type"].get<std::string>();
  }

  bool flag(const json& object, const char* key, const std::string& path, bool absent) const {
    const json& value = member(object, key);
    if (value.is_null()) return absent;
    if (!value.is_boolean()) refuse(path + "." + key, "is neither true nor false");
    return value.get<bool>();
  }

  void read_normalizer(const json& value, const std::string& path) {
    if (value.is_null()) return;
    const std::string type = type_of(value, path);
    const auto add = [&](NormalizerStep step) { parts_.normalizer.push_back(std::move(step)); };
    if (type == "NFC") {
      add({.kind = NormalizerStep::Kind::nfc, .from = {}, .to = {}});
    } else if (type == "NFKC") {
      add({.kind = NormalizerStep::Kind::nfkc, .from = {}, .to = {}});
    } else if (type == "Prepend" && member(value, "prepend").is_string()) {
      add({.kind = NormalizerStep::Kind::prepend, .from = {}, .to = value["prepend"].get<std::string>()});
    } else if (type == "Replace" && member(value, "content").is_string()) {
      const json& pattern = member(value, "pattern");
      const json string = pattern.is_object() ? member(pattern, "String") : json();
      if (!string.is_string() || string == "") refuse(path + ".pattern", "is no String, which alone is replaced here");
      add({.kind = NormalizerStep::Kind::replace, .from = string, .to = value["content"].get<std::string>()});
    } else if (type == "Sequence") {
      for (const json& part : elements(value, "normalizers", path)) read_normalizer(part, path + ".normalizers[]");
    } else {
      refuse(path, "is " + type + ", which gptrain does not support (NFC, NFKC, Replace and Prepend are)");
    }
  }

  const json& elements(const json& object, const char* key, const std::string& path) const {
    const json& list = member(object, key);
    if (!list.is_array()) refuse(path + "." + key, "is no list");
    return list;
  }

  void read_pre_tokenizer(const json& value, const std::string& path) {
    if (value.is_null()) return;
    const std::string type = type_of(value, path);
    if (is_byte_level_) refuse(path, type + " stands after ByteLevel, which leaves no characters to split");
    if (type == "Sequence") {
      for (const json& part : elements(value, "pretokenizers", path)) {
        read_pre_tokenizer(part, path + ".pretokenizers[]");
      }
    } else if (type == "ByteLevel") {
      read_byte_level(value, path);
    } else if (type == "Digits") {
      if (!flag(value, "individual_digits", path, false)) refuse(path, "joins digits, which gptrain does not support");
      parts_.stages.emplace_back(DigitsStage{});
    } else if (type == "Split") {
      read_split(value, path);
    } else if (type == "Metaspace") {
      read_metaspace(value, path);
    } else {
      refuse(path,
             "is " + type + ", which gptrain does not support (ByteLevel, Split, Digits, Metaspace and Sequence are)");
    }
  }

  void read_byte_level(const json& value, const std::string& path) {
    is_byte_level_ = true;
    parts_.add_prefix_space = flag(value, "add_prefix_space", path, true);
    if (parts_.add_prefix_space && !parts_.stages.empty()) {
      refuse(path + ".add_prefix_space", "puts a space before every piece, which gptrain does not support");
    }
    if (flag(value, "use_regex", path, true)) parts_.stages.emplace_back(PatternKind::gpt2);
  }

  static std::string regex_of_string(const std::string& text) {
    std::string regex;
    for (const char c : text) {
      const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                            static_cast<uint8_t>(c) >= 0x80 || c == ' ' || c == '\n' || c == '\t' || c == '\r';
      if (!is_plain) regex += '\\';
      regex += c;
    }
    return regex;
  }

  void read_metaspace(const json& value, const std::string& path) {
    if (!parts_.stages.empty() || parts_.metaspace)
      refuse(path, "is Metaspace after other pre-tokenizers, which gptrain does not support");
    const json& symbol = member(value, "replacement");
    if (!symbol.is_string() || symbol == "") refuse(path + ".replacement", "is no character");
    Metaspace metaspace{.symbol = symbol.get<std::string>(), .prepend = Metaspace::Prepend::always};
    const json& scheme = member(value, "prepend_scheme");
    if (scheme == "first")
      metaspace.prepend = Metaspace::Prepend::first;
    else if (scheme == "never" || (scheme.is_null() && !flag(value, "add_prefix_space", path, true)))
      metaspace.prepend = Metaspace::Prepend::never;
    else if (!scheme.is_null() && scheme != "always")
      refuse(path + ".prepend_scheme", "is unknown");
    if (flag(value, "split", path, true)) {
      parts_.stages.emplace_back(RegexStage{regex_of_string(metaspace.symbol), SplitBehavior::merged_with_next});
    }
    parts_.metaspace = std::move(metaspace);
  }

  void read_split(const json& value, const std::string& path) {
    const json& pattern = member(value, "pattern");
    std::string regex;
    if (pattern.is_object() && member(pattern, "Regex").is_string()) {
      regex = pattern["Regex"].get<std::string>();
    } else if (pattern.is_object() && member(pattern, "String").is_string()) {
      regex = regex_of_string(pattern["String"].get<std::string>());
    }
    if (regex.empty()) refuse(path + ".pattern", "is neither a Regex nor a String");
    const json& behavior = member(value, "behavior");
    const bool invert = flag(value, "invert", path, false);
    SplitBehavior chosen = SplitBehavior::isolated;
    if (behavior == "Removed")
      chosen = invert ? SplitBehavior::only_matches : SplitBehavior::removed;
    else if (behavior == "MergedWithPrevious" && !invert)
      chosen = SplitBehavior::merged_with_previous;
    else if (behavior == "MergedWithNext" && !invert)
      chosen = SplitBehavior::merged_with_next;
    else if (behavior != "Isolated")
      refuse(path, "is Split with behavior " + json_text(behavior) + (invert ? ", inverted" : "") +
                       ", which gptrain does not support");
    if (chosen != SplitBehavior::isolated && chosen != SplitBehavior::only_matches) is_as_written_ = false;
    // Oniguruma reads {1,3}+, which is in tiktoken's own spelling of cl100k, differently from tiktoken.
    if (const auto known = pattern_of_regex(regex); known && regex.find("{1,3}+") == std::string::npos) {
      parts_.stages.emplace_back(*known);
    } else {
      parts_.stages.emplace_back(RegexStage{regex, chosen});
    }
  }

  // Reads from the decoder only whether decoding drops the first space. The tokens themselves give the rest.
  void read_decoder(const json& value, const std::string& path) {
    if (value.is_null()) return;
    const std::string type = type_of(value, path);
    if (is_byte_level_) {
      if (type != "ByteLevel") refuse(path, "is " + type + ", which gptrain does not support (ByteLevel is)");
    } else if (type == "Sequence") {
      for (const json& part : elements(value, "decoders", path)) read_decoder(part, path + ".decoders[]");
    } else if (type == "Strip" || type == "Metaspace") {
      parts_.strips_first_space = type == "Metaspace" || member(value, "start") == 1;
    } else if (type != "Replace" && type != "ByteFallback" && type != "Fuse") {
      refuse(path, "is " + type + ", which gptrain does not support");
    }
  }

  void read_model(const json& model) {
    if (member(model, "type") == "Unigram") return read_unigram(model);
    if (const json& dropout = member(model, "dropout"); !dropout.is_null() && dropout != 0) {
      refuse("model.dropout", "is set, so that each encoding of a text differs, which gptrain does not support");
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (const json& value = member(model, key); !value.is_null() && value != "") {
        refuse(std::string("model.") + key, "is set, which gptrain does not support");
      }
    }
    parts_.ignore_merges = flag(model, "ignore_merges", "model", false);
    read_vocabulary(member(model, "vocab"));
    read_merges(member(model, "merges"));
    read_characters(model);
  }

  void read_characters(const json& model) {
    CharacterParts& characters = parts_.characters;
    characters.byte_fallback = flag(model, "byte_fallback", "model", false);
    characters.fuse_unknown = flag(model, "fuse_unk", "model", false);
    if (const json& unknown = member(model, "unk_token"); unknown.is_string()) {
      const auto found = ids_.find(unknown.get<std::string>());
      if (found == ids_.end()) refuse("model.unk_token", "is not in model.vocab");
      characters.unknown = found->second;
    }
    const bool has_bytes = ids_.contains("<0x00>") && ids_.contains("<0xFF>");
    if (!is_byte_level_ && !characters.unknown && !(characters.byte_fallback && has_bytes)) {
      refuse("model", "has neither ByteLevel nor a token for unknown characters: encoding would drop them");
    }
  }

  void read_unigram(const json& model) {
    if (is_byte_level_) refuse("model", "is Unigram after ByteLevel, which gptrain does not support");
    const json& vocabulary = member(model, "vocab");
    if (!vocabulary.is_array() || vocabulary.empty()) refuse("model.vocab", "is no list of tokens and scores");
    for (const json& entry : vocabulary) {
      if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
        refuse("model.vocab", "holds " + json_text(entry) + ", which is no token with its score");
      }
      ids_[entry[0].get<std::string>()] = static_cast<int32_t>(parts_.tokens.size());
      parts_.tokens.push_back(entry[0].get<std::string>());
      parts_.unigram.scores.push_back(as_tokenizers_reads(entry[1].get<double>()));
    }
    const json& unknown = member(model, "unk_id");
    if (unknown.is_null()) refuse("model.unk_id", "is not given: encoding would drop characters that have no token");
    if (!unknown.is_number_unsigned() || unknown.get<size_t>() >= parts_.tokens.size())
      refuse("model.unk_id", "is no token");
    parts_.unigram.unknown = unknown.get<int32_t>();
    parts_.unigram.byte_fallback = flag(model, "byte_fallback", "model", false);
  }

  int32_t id_in_range(const json& value, const std::string& path) const {
    if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() >= max_ids) {
      refuse(path, "is " + json_text(value) + ", no id from 0 to " + std::to_string(max_ids - 1));
    }
    return value.get<int32_t>();
  }

  void read_vocabulary(const json& vocabulary) {
    if (!vocabulary.is_object() || vocabulary.empty()) refuse("model.vocab", "is no object of tokens and ids");
    std::string bytes;
    ids_.reserve(vocabulary.size());
    for (const auto& [text, number] : vocabulary.items()) {
      const int32_t id = id_in_range(number, "model.vocab");
      const auto index = static_cast<size_t>(id);
      ids_.emplace(text, id);
      if (index >= parts_.tokens.size()) parts_.tokens.resize(index + 1);
      if (!parts_.tokens[index].empty()) refuse("model.vocab", "gives the id " + std::to_string(id) + " twice");
      // A token that is not bytes can only come from added_tokens.
      if (!is_byte_level_)
        parts_.tokens[index] = text;
      else if (from_byte_level(text, bytes))
        parts_.tokens[index] = bytes;
    }
  }

  int32_t id_of(const std::string& text) const {
    const auto found = ids_.find(text);
    if (found == ids_.end()) refuse("model.merges", "names " + json_text(json(text)) + ", which is not in model.vocab");
    return found->second;
  }

  void read_merges(const json& merges) {
    if (!merges.is_array()) refuse("model.merges", "is no list");
    parts_.merges.reserve(merges.size());
    for (const json& merge : merges) {
      std::string left;
      std::string right;
      if (merge.is_string()) {
        const auto& text = merge.get_ref<const std::string&>();
        const size_t space = text.find(' ');
        if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
          refuse("model.merges", "holds " + json_text(merge) + ", which is no \"left right\"");
        }
        left = text.substr(0, space);
        right = text.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      } else {
        refuse("model.merges", "holds " + json_text(merge) + ", which is no pair");
      }
      parts_.merges.push_back({id_of(left), id_of(right), id_of(left + right)});
    }
  }

  void read_added(const json& list) {
    if (list.is_null()) return;
    if (!list.is_array()) refuse("added_tokens", "is no list");
    std::unordered_map<int32_t, std::string> by_id;
    // The id that tokenizers gives the next token that is not in model.vocab.
    auto next_id = static_cast<int64_t>(parts_.unigram.scores.empty() ? ids_.size() : parts_.tokens.size());
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string path = "added_tokens[" + std::to_string(i) + "]";
      const json& token = list[i];
      if (!token.is_object() || !member(token, "content").is_string()) refuse(path, "has no content");
      AddedToken added;
      added.content = token["content"].get<std::string>();
      added.id = id_in_range(member(token, "id"), path + ".id");
      if (flag(token, "single_word", path, false))
        refuse(path + ".single_word", "is true, which gptrain does not support");
      added.takes_left_space = flag(token, "lstrip", path, false);
      added.takes_right_space = flag(token, "rstrip", path, false);
      added.special = flag(token, "special", path, false);
      added.normalized = flag(token, "normalized", path, !added.special);
      if (added.content.empty()) refuse(path + ".content", "is empty");
      const auto known = ids_.find(added.content);
      if (known != ids_.end() && known->second != added.id) {
        refuse(path, "has the id " + std::to_string(added.id) + ", and in model.vocab it is " +
                         std::to_string(known->second));
      }
      const auto index = static_cast<size_t>(added.id);
      if (known == ids_.end() && index < parts_.tokens.size() && !parts_.tokens[index].empty()) {
        refuse(path, "has the id " + std::to_string(added.id) + " of another token");
      }
      const bool is_new = known == ids_.end() && !by_id.contains(added.id);
      if (is_new && added.id != next_id && other_id_.empty()) {
        other_id_ = path + " has the id " + std::to_string(added.id) +
                    ", and the tokenizers library gives it the next free one, " + std::to_string(next_id) +
                    ": write it into model.vocab with its id";
      }
      const auto [first, is_first] = by_id.emplace(added.id, added.content);
      if (first->second != added.content) refuse(path, "has the id " + std::to_string(added.id) + " of another token");
      if (!is_first && !has_same_flags(parts_.added, added))
        refuse(path, "is " + json_text(token["content"]) + " once more, with other flags: keep the one that is meant");
      next_id = std::max(next_id, int64_t{added.id} + 1);
      parts_.added.push_back(added);
    }
  }

  TokenizerParts parts_;
  std::unordered_map<std::string, int32_t> ids_;
  std::string other_id_;
  bool is_byte_level_ = false;
  bool is_as_written_ = true;
};

std::shared_ptr<const Tokenizer> read_sentencepiece(const json& base64, const std::string& source) {
  std::optional<std::string> model;
  if (base64.is_string()) model = from_base64(base64.get_ref<const std::string&>());
  if (!model) throw Error(ExitCode::usage, "{}: member \"sentencepiece\" is no model in base64", source);
  return std::make_shared<Tokenizer>(std::make_unique<SentencePiece>(std::move(*model), source), source);
}

}  // namespace

std::shared_ptr<const Tokenizer> parse_tokenizer_json(std::string_view text, const std::string& source,
                                                      AddedIds added_ids) {
  const json root = parse_json_or_discard(text);
  if (root.is_discarded()) throw Error(ExitCode::usage, "{}: {}", source, describe_json_fault(text));
  if (root.is_object() && root.contains("sentencepiece")) return read_sentencepiece(root["sentencepiece"], source);
  Reader reader(source);
  TokenizerParts parts = reader.read(root);
  if (!reader.is_as_written()) parts.text = text;
  const bool must_agree = added_ids == AddedIds::of_tokenizers && !reader.other_id().empty();
  if (must_agree && (!reader.is_as_written() || tokenizer_json(parts) != text))
    throw Error(ExitCode::usage, "{}: {}", source, reader.other_id());
  return std::make_shared<Tokenizer>(std::move(parts));
}

}  // namespace gptrain::data
