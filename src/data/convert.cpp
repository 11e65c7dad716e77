#include "data/convert.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/output_file.h"
#include "data/token_file.h"
#include "data/token_paths.h"
#include "data/token_writer.h"

namespace gptrain::inline data {
namespace {

namespace fs = std::filesystem;

// Writes a format without documents.
class FlatWriter {
 public:
  FlatWriter(const ConvertOptions& options, DType dtype, int64_t tokens)
      : file_(options.out, ExitCode::data), path_(options.out), dtype_(dtype) {
    if (options.to == TokenFormat::npy) file_.write(npy_header(dtype, tokens));
    if (options.to != TokenFormat::llmc) return;
    if (tokens > std::numeric_limits<int32_t>::max())
      throw Error(ExitCode::data, "{}: {} tokens are more than llm.c's header can count", path_.native(), tokens);
    const bool narrow = dtype == DType::u16;
    std::array<int32_t, llmc::header_bytes / 4> header{};
    header[0] = narrow ? llmc::magic_u16 : llmc::magic_u32;
    header[1] = narrow ? llmc::version_u16 : llmc::version_u32;
    header[2] = static_cast<int32_t>(tokens);
    file_.write({reinterpret_cast<const char*>(header.data()), sizeof header});
  }

  void append(std::span<const int32_t> ids) {
    if (dtype_ == DType::i32) return file_.write({reinterpret_cast<const char*>(ids.data()), ids.size_bytes()});
    stored_.resize(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] > std::numeric_limits<uint16_t>::max())
        throw Error(ExitCode::data, "cannot write {}: token {} does not fit into 16 bits", path_.native(), ids[i]);
      stored_[i] = static_cast<uint16_t>(ids[i]);
    }
    file_.write({reinterpret_cast<const char*>(stored_.data()), stored_.size() * sizeof(uint16_t)});
  }

  void finish() { file_.commit(); }

 private:
  AtomicFile file_;
  fs::path path_;
  DType dtype_;
  std::vector<uint16_t> stored_;
};

// Writes PREFIX.bin and PREFIX.idx; each end token ends a document.
class DocumentWriter {
 public:
  DocumentWriter(const ConvertOptions& options, DType dtype) : writer_(options.out, dtype), end_(options.end_token) {}

  void append(std::span<const int32_t> ids) {
    while (!ids.empty()) {
      auto end = ids.end();
      if (end_) end = std::find(ids.begin(), ids.end(), *end_);
      is_open_ = end == ids.end();
      const size_t count = static_cast<size_t>(end - ids.begin()) + (is_open_ ? 0 : 1);
      writer_.append(ids.first(count));
      if (!is_open_) end_document();
      ids = ids.subspan(count);
    }
  }

  int64_t finish() {
    if (is_open_) end_document();
    writer_.finish();
    return documents_;
  }

 private:
  void end_document() {
    writer_.end_document();
    ++documents_;
  }

  TokenWriter writer_;
  std::optional<int32_t> end_;
  bool is_open_ = false;
  int64_t documents_ = 0;
};

void refuse_own_input(const ConvertOptions& options) {
  for (const std::string_view suffix : {"", ".bin", ".idx"}) {
    for (const std::string_view out_suffix : {"", ".bin", ".idx"}) {
      std::error_code ignored;
      const fs::path out = token_file_path(options.out, out_suffix);
      if (!fs::equivalent(token_file_path(options.in, suffix), out, ignored) || fs::is_directory(out, ignored))
        continue;
      throw Error(ExitCode::usage, "{} is the input and would be overwritten; choose another name", out.native());
    }
  }
}

}  // namespace

ConvertResult convert_tokens(const ConvertOptions& options, const std::function<void(int64_t, int64_t)>& progress) {
  refuse_own_input(options);
  const TokenFile source(options.in, true, options.dtype);
  if (source.format() == TokenFormat::megatron && options.to == TokenFormat::megatron)
    throw Error(ExitCode::usage, "{} is in Megatron's format already", options.in.native());
  if (source.best_fit_length() > 0)
    throw Error(ExitCode::usage,
                "{} was packed with --best-fit {}, and the format {} cannot mark where samples begin; pack the texts "
                "without --best-fit",
                options.in.native(), source.best_fit_length(), format_name(options.to));
  if (options.end_token && options.to != TokenFormat::megatron)
    throw Error(ExitCode::usage, "--end-token: the format {} keeps no boundaries of documents: leave it out",
                format_name(options.to));
  if (options.to != TokenFormat::megatron) check_can_write(options.out, ExitCode::data);
  ConvertResult result{source.format(), source.num_tokens(), 0};
  const auto read_all = [&](auto& writer) {
    std::vector<int32_t> ids(chunk_tokens);
    for (int64_t first = 0; first < source.num_tokens(); first += chunk_tokens) {
      const int64_t count = std::min(chunk_tokens, source.num_tokens() - first);
      source.read({first, count}, any_vocabulary, ids.data());
      writer.append(std::span(ids).first(count));
      progress(first + count, source.num_tokens());
    }
  };
  if (options.to == TokenFormat::megatron) {
    DocumentWriter writer(options, source.dtype());
    read_all(writer);
    result.documents = writer.finish();
    return result;
  }
  FlatWriter writer(options, options.to == TokenFormat::nanogpt ? DType::u16 : source.dtype(), source.num_tokens());
  read_all(writer);
  writer.finish();
  return result;
}

}  // namespace gptrain::data
