#include "data/run_tokenizer.h"

#include <filesystem>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "data/token_meta.h"
#include "data/token_set.h"
#include "data/tokenizer/files.h"

namespace gptrain::inline data {
namespace {

constexpr const char* automatic = "auto";

struct Claim {
  TokenizerRecord record;
  std::string source;
};

std::string described(const Claim& claim) {
  constexpr size_t shown_digits = 12;
  return fmt::format("{} ({} tokens, sha256 {}...)", claim.source, format_grouped(claim.record.vocab_size),
                     claim.record.sha256.substr(0, shown_digits));
}

// Merges two claims that agree; the second fills in data that the first lacks.
void merge(std::optional<Claim>& claim, Claim other) {
  if (!claim) {
    claim = std::move(other);
    return;
  }
  if (claim->record.sha256 != other.record.sha256) {
    throw Error(ExitCode::usage,
                "tokens of different tokenizers cannot be read by one model:\n  {}\n  {}\npack all texts with one "
                "tokenizer",
                described(*claim), described(other));
  }
  if (claim->record.text.empty()) claim->record.text = std::move(other.record.text);
  if (!claim->record.end_token) claim->record.end_token = other.record.end_token;
}

// Returns a warning, or nothing.
std::string check_vocabulary(int64_t has, const Claim& claim) {
  const int64_t needs = claim.record.vocab_size;
  if (has < needs) {
    throw Error(ExitCode::usage, "model.vocab_size = {}: {} has {} tokens; set model.vocab_size to {}", has,
                claim.source, needs, needs);
  }
  if (has <= needs + max_spare_ids) return "";
  return fmt::format("model.vocab_size = {}: {} has {} tokens, so that {} rows of the vocabulary are never trained",
                     has, claim.source, needs, has - needs);
}

}  // namespace

RunTokenizer find_run_tokenizer(const DataConfig& data, int64_t model_vocab_size,
                                const std::optional<TokenizerRecord>& known) {
  std::optional<Claim> claim;
  RunTokenizer result;
  bool data_say = false;
  if (data.tokenizer != automatic) {
    result.tokenizer = load_tokenizer(data.tokenizer);
    claim = Claim{make_tokenizer_record(*result.tokenizer, std::nullopt),
                  fmt::format("data.tokenizer = {}", data.tokenizer)};
  }
  for (const auto* sources : {&data.train, &data.validation}) {
    for (const DataSource& source : *sources) {
      for (const std::filesystem::path& file : token_files_of(source.path)) {
        const std::optional<TokenMeta> meta = read_token_meta(file);
        if (!meta || !meta->tokenizer) continue;
        data_say = true;
        merge(claim, {*meta->tokenizer, fmt::format("the tokenizer of {}", file.native())});
      }
    }
  }
  if (known) merge(claim, {*known, "the tokenizer of the checkpoint"});
  if (!claim) return result;
  result.warning = check_vocabulary(model_vocab_size, *claim);
  if (!result.tokenizer && !claim->record.text.empty()) result.tokenizer = tokenizer_of(claim->record, claim->source);
  result.record = std::move(claim->record);
  // Data without a record most likely end their documents as others do.
  if (!data_say && !known && result.tokenizer) result.record->end_token = result.tokenizer->end_of_document_id();
  return result;
}

}  // namespace gptrain::data
