#include "data/join.h"

#include <algorithm>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "data/seen_files.h"
#include "data/token_file.h"
#include "data/token_meta.h"
#include "data/token_paths.h"
#include "data/token_writer.h"

namespace gptrain::inline data {
namespace {

namespace fs = std::filesystem;

// Returns the tokenizer that all inputs name; nullopt if one of them names none.
std::optional<TokenizerRecord> common_tokenizer(const std::vector<fs::path>& inputs) {
  std::optional<TokenizerRecord> common;
  bool all_say = true;
  for (const fs::path& input : inputs) {
    std::optional<TokenMeta> meta = read_token_meta(input);
    if (!meta || !meta->tokenizer) {
      all_say = false;
      continue;
    }
    TokenizerRecord& own = *meta->tokenizer;
    if (!common) common = own;
    if (common->sha256 != own.sha256 || common->end_token != own.end_token) {
      throw Error(ExitCode::usage,
                  "{} and {} were packed with different tokenizers, or only one has end tokens: pack them alike",
                  inputs.front().native(), input.native());
    }
    if (common->text.empty()) common->text = std::move(own.text);
  }
  return all_say ? common : std::nullopt;
}

std::vector<TokenFile> open_inputs(const std::vector<fs::path>& inputs, const fs::path& out,
                                   std::optional<DType> dtype) {
  std::vector<TokenFile> files;
  SeenFiles seen;
  for (const fs::path& input : inputs) {
    if (const std::optional<size_t> before = seen.add(path_of_tokens(input))) {
      throw Error(ExitCode::usage, "{} and {} are the same file, whose documents would be joined twice: name it once",
                  inputs[*before].native(), input.native());
    }
    std::error_code ignored;
    const fs::path written = token_file_path(out, ".bin");
    if (fs::equivalent(token_file_path(input, ".bin"), written, ignored) || fs::equivalent(input, written, ignored))
      throw Error(ExitCode::usage, "{} is an input and would be overwritten; choose another output prefix",
                  out.native());
    const TokenFile& file = files.emplace_back(input, true, dtype);
    if (file.best_fit_length() != files.front().best_fit_length()) {
      throw Error(ExitCode::usage, "{} was packed with --best-fit {}, {} with {} (0: without): they cannot be joined",
                  inputs.front().native(), files.front().best_fit_length(), input.native(), file.best_fit_length());
    }
    if (file.dtype() != files.front().dtype()) {
      throw Error(ExitCode::usage, "{} holds tokens of {}, {} of {}: they cannot be joined", inputs.front().native(),
                  stored_type(files.front()), input.native(), stored_type(file));
    }
  }
  return files;
}

int64_t end_of_sample(const TokenFile& file, int64_t sample) {
  const TokenFile::Range range = file.sample(sample);
  return range.first + range.count;
}

}  // namespace

JoinResult join_token_files(const std::vector<fs::path>& inputs, const fs::path& out,
                            const std::function<void(int64_t, int64_t)>& progress, std::optional<DType> dtype) {
  const std::vector<TokenFile> files = open_inputs(inputs, out, dtype);
  std::optional<TokenizerRecord> tokenizer = common_tokenizer(inputs);
  int64_t total = 0;
  for (const TokenFile& file : files) total += file.num_tokens();
  TokenWriter writer(out, files.front().dtype());
  JoinResult result{.has_tokenizer = tokenizer && !tokenizer->text.empty()};
  if (tokenizer) writer.set_tokenizer(std::move(*tokenizer));
  const int64_t best_fit_length = files.front().best_fit_length();
  if (best_fit_length > 0) writer.set_best_fit_length(best_fit_length);
  std::vector<int32_t> ids(chunk_tokens);
  for (const TokenFile& file : files) {
    int64_t sample = 0;
    for (int64_t i = 0; i < file.num_documents(); ++i) {
      const TokenFile::Range document = file.document(i);
      for (int64_t done = 0; done < document.count; done += chunk_tokens) {
        const int64_t count = std::min(chunk_tokens, document.count - done);
        file.read({document.first + done, count}, any_vocabulary, ids.data());
        writer.append(std::span(ids).first(count));
      }
      if (best_fit_length > 0 && document.first + document.count < end_of_sample(file, sample)) {
        writer.end_document_in_sample();
      } else {
        writer.end_document();
        ++sample;
      }
      result.tokens += document.count;
    }
    result.documents += file.num_documents();
    progress(result.tokens, total);
  }
  writer.finish();
  return result;
}

}  // namespace gptrain::data
