#include "data/tokenizer/record.h"

#include <utility>

#include "base/json.h"
#include "base/sha256.h"
#include "data/tokenizer/files.h"
#include "data/tokenizer/tokenizer_json.h"

namespace gptrain::inline data {
namespace {

using nlohmann::json;

constexpr size_t sha256_digits = 64;
constexpr int64_t max_vocabulary = int64_t{1} << 31;

[[noreturn]] void fault(const char* what) { throw json::other_error::create(507, what, nullptr); }

}  // namespace

TokenizerRecord make_tokenizer_record(const Tokenizer& tokenizer, std::optional<int32_t> end_token) {
  std::string text = tokenizer.is_bytes() ? std::string("bytes") : tokenizer_text(tokenizer);
  std::string hash = sha256_hex(text);
  return {std::move(hash), tokenizer.vocab_size(), end_token, std::move(text)};
}

std::shared_ptr<const Tokenizer> tokenizer_of(const TokenizerRecord& record, const std::string& source) {
  if (record.is_bytes()) return std::make_shared<Tokenizer>();
  return parse_tokenizer_json(record.text, source);
}

bool is_same_tokenizer(const TokenizerRecord& a, const TokenizerRecord& b) {
  if (a.sha256 == b.sha256) return true;
  json contents[2];
  for (const TokenizerRecord* record : {&a, &b}) {
    if (record->text.empty() || record->is_bytes()) return false;
    tokenizer_of(*record, "tokenizer.json");  // with_added_ids() takes only sound texts
    contents[record == &b ? 1 : 0] = parse_json(with_added_ids(record->text));
  }
  return contents[0] == contents[1];
}

nlohmann::ordered_json tokenizer_record_json(const TokenizerRecord& record) {
  nlohmann::ordered_json object = {{"sha256", record.sha256}, {"vocab_size", record.vocab_size}};
  if (record.end_token) object["end_token"] = *record.end_token;
  if (!record.text.empty()) object["text"] = record.text;
  return object;
}

TokenizerRecord parse_tokenizer_record(const json& object) {
  TokenizerRecord record;
  record.sha256 = object.at("sha256");
  const bool is_hash =
      record.sha256.size() == sha256_digits && record.sha256.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!is_hash) fault("the hash of its tokenizer is not 64 hexadecimal digits");
  record.vocab_size = object.at("vocab_size");
  if (record.vocab_size < 1 || record.vocab_size > max_vocabulary) fault("its tokenizer has no such vocabulary");
  if (object.contains("end_token")) {
    const int64_t id = object["end_token"];
    if (id < 0 || id >= record.vocab_size) fault("the token that ends its documents is not in its vocabulary");
    record.end_token = static_cast<int32_t>(id);
  }
  if (object.contains("text")) {
    record.text = object["text"];
    if (sha256_hex(record.text) != record.sha256) fault("its tokenizer does not have the hash beside it");
  }
  return record;
}

}  // namespace gptrain::data
