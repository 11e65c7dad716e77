#include "data/token_writer.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file_error.h"
#include "data/token_file.h"
#include "data/token_meta.h"
#include "data/token_paths.h"

namespace gptrain::inline data {
namespace {

[[noreturn]] void throw_write_error(const std::filesystem::path& path) {
  throw Error(ExitCode::data, "cannot write {}: {}", path.native(), std::generic_category().message(errno));
}

// Returns the largest token, 0 without one. A loop over values: compilers use vectors for it, not for std::max_element.
template <typename Token>
int64_t largest_of(std::span<const Token> tokens) {
  Token largest = 0;
  for (const Token token : tokens) largest = std::max(largest, token);
  return largest;
}

// A file written under a temporary name in the folder of `path`, and renamed to `path` once all data are on disk.
class TokenOutput {
 public:
  explicit TokenOutput(std::filesystem::path path)
      : path_(std::move(path)), temporary_(path_.native() + fmt::format(".tmp-{}", ::getpid())) {
    file_ = call_with_tries([&] { return ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666); });
    if (file_ < 0) throw_write_error(path_);
    buffer_.reserve(buffer_bytes);
  }
  ~TokenOutput() {
    if (file_ >= 0) ::close(file_);
    if (!renamed_) ::unlink(temporary_.c_str());
  }
  TokenOutput(const TokenOutput&) = delete;
  TokenOutput& operator=(const TokenOutput&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const BlockChecksums& checksums() const { return checksums_; }  // complete once synced

  template <typename T>
  void put(T value) {
    put_bytes(&value, sizeof value);
  }

  void put_bytes(const void* bytes, size_t count) {
    const auto* first = static_cast<const char*>(bytes);
    while (count > 0) {
      if (buffer_.size() == buffer_bytes) flush();
      const size_t taken = std::min(count, buffer_bytes - buffer_.size());
      buffer_.insert(buffer_.end(), first, first + taken);
      first += taken;
      count -= taken;
    }
  }

  void sync() {
    flush();
    if (sync_descriptor(file_) != 0) throw_write_error(path_);
    const int result = ::close(file_);
    file_ = -1;
    if (result != 0) throw_write_error(path_);
  }

  void rename() {
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) throw_write_error(path_);
    renamed_ = true;
  }

 private:
  static constexpr size_t buffer_bytes = size_t{1} << 18;  // small enough for the cache

  void flush() {
    checksums_.add(buffer_.data(), buffer_.size());
    for (size_t done = 0; done < buffer_.size();) {
      const ssize_t written =
          call_with_tries([&] { return ::write(file_, buffer_.data() + done, buffer_.size() - done); });
      if (written < 0) throw_write_error(path_);
      done += static_cast<size_t>(written);
    }
    buffer_.clear();
  }

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int file_ = -1;
  bool renamed_ = false;
  std::vector<char> buffer_;
  BlockChecksums checksums_;
};

// Returns true if the file existed.
bool remove_file(const std::filesystem::path& path) {
  if (::unlink(path.c_str()) == 0) return true;
  if (errno != ENOENT) throw_write_error(path);
  return false;
}

// A rename or removal survives a power failure only once its folder is synced.
void sync_folder_of(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) throw_write_error(folder);
  const int result = sync_descriptor(file);
  const int reason = errno;
  ::close(file);
  errno = reason;
  if (result != 0) throw_write_error(folder);
}

}  // namespace

void prepare_token_prefix(const std::filesystem::path& prefix) {
  if (prefix.filename().empty()) {
    throw Error(ExitCode::data, "cannot write {}: it is a folder; name a PREFIX in it, such as {}corpus",
                prefix.native(), prefix.native());
  }
  std::error_code error;
  if (prefix.has_parent_path()) std::filesystem::create_directories(prefix.parent_path(), error);
  if (error)
    throw Error(ExitCode::data, "cannot create the folder {}: {}", prefix.parent_path().native(), error.message());
  for (const std::string_view suffix : {".bin", ".idx", ".meta.json"}) {
    const std::filesystem::path file = token_file_path(prefix, suffix);
    if (std::filesystem::is_directory(file, error))
      throw Error(ExitCode::data, "cannot write {}: it is a folder; choose another PREFIX", file.native());
  }
}

struct TokenWriter::Impl {
  Impl(const std::filesystem::path& prefix, DType dtype_, int32_t max_sequence_tokens_)
      : tokens(token_file_path(prefix, ".bin")),
        meta(token_file_path(prefix, ".meta.json")),
        index(token_file_path(prefix, ".idx")),
        dtype(dtype_),
        max_sequence_tokens(max_sequence_tokens_) {}

  template <typename T>
  void put_tokens(std::span<const int32_t> values) {
    std::array<T, 4096> stored;
    while (!values.empty()) {
      const size_t count = std::min(values.size(), stored.size());
      bool fits = true;
      for (size_t i = 0; i < count; ++i) {
        stored[i] = static_cast<T>(values[i]);
        fits = fits && values[i] >= 0 && static_cast<int32_t>(stored[i]) == values[i];
      }
      if (!fits) throw_unfit(values.first(count));
      largest_id = std::max(largest_id, largest_of(values.first(count)));
      tokens.put_bytes(stored.data(), count * sizeof(T));
      values = values.subspan(count);
    }
  }

  // Adds `left` tokens to the current document.
  void lengthen(size_t left) {
    while (left > 0) {
      if (!in_sequence || lengths.back() == max_sequence_tokens) lengths.push_back(0);
      in_sequence = true;
      int32_t& length = lengths.back();
      const size_t taken = std::min(left, static_cast<size_t>(max_sequence_tokens - length));
      length += static_cast<int32_t>(taken);
      left -= taken;
    }
  }

  [[noreturn]] void throw_unfit(std::span<const int32_t> values) const {
    const int32_t highest = dtype == DType::u16 ? 0xFFFF : std::numeric_limits<int32_t>::max();
    const auto bad = std::find_if(values.begin(), values.end(), [&](int32_t id) { return id < 0 || id > highest; });
    throw Error(ExitCode::data, "cannot write {}: token {} is outside the range of dtype {}", tokens.path().native(),
                *bad, dtype_name(dtype));
  }

  void put_index() {
    index.put_bytes(token_index::magic.data(), token_index::magic.size());
    index.put(token_index::version);
    index.put(dtype == DType::u16 ? token_index::u16_code : token_index::i32_code);
    index.put(uint64_t{lengths.size()});
    index.put(uint64_t{boundaries.size()});
    for (const int32_t length : lengths) index.put(length);
    int64_t offset = 0;
    for (const int32_t length : lengths) {
      index.put(offset);
      offset += length * dtype_bytes(dtype);
    }
    for (const int64_t boundary : boundaries) index.put(boundary);
  }

  void put_meta() {
    const BlockChecksums& made = tokens.checksums();
    const std::string text =
        format_token_meta({.bytes = made.bytes(),
                           .tokens = made.bytes() / dtype_bytes(dtype),
                           .blocks = made.blocks(),
                           .tokenizer = tokenizer,
                           .best_fit_length = best_fit_length,
                           .largest_id = made.bytes() > 0 ? std::optional(largest_id) : std::nullopt});
    meta.put_bytes(text.data(), text.size());
  }

  TokenOutput tokens;
  TokenOutput meta;
  TokenOutput index;
  DType dtype;
  int32_t max_sequence_tokens;
  std::optional<TokenizerRecord> tokenizer;
  int64_t best_fit_length = 0;
  int64_t largest_id = 0;
  bool in_sequence = false;  // the last of `lengths` can still grow
  std::vector<int32_t> lengths;
  std::vector<int64_t> boundaries = {0};
};

TokenWriter::TokenWriter(const std::filesystem::path& prefix, DType dtype, int32_t max_sequence_tokens)
    : impl_((prepare_token_prefix(prefix), std::make_unique<Impl>(prefix, dtype, max_sequence_tokens))) {}

TokenWriter::~TokenWriter() = default;

void TokenWriter::append(std::span<const int32_t> tokens) {
  if (impl_->dtype == DType::u16) {
    impl_->put_tokens<uint16_t>(tokens);
  } else {
    impl_->put_tokens<int32_t>(tokens);
  }
  impl_->lengthen(tokens.size());
}

void TokenWriter::append(std::span<const uint16_t> tokens) {
  impl_->lengthen(tokens.size());
  constexpr size_t in_cache = 8192;  // tokens that are still in the first cache when they are copied
  for (; !tokens.empty(); tokens = tokens.subspan(std::min(in_cache, tokens.size()))) {
    const std::span<const uint16_t> piece = tokens.first(std::min(in_cache, tokens.size()));
    impl_->largest_id = std::max(impl_->largest_id, largest_of(piece));
    impl_->tokens.put_bytes(piece.data(), piece.size_bytes());
  }
}

void TokenWriter::end_document() {
  impl_->in_sequence = false;
  impl_->boundaries.push_back(static_cast<int64_t>(impl_->lengths.size()));
}

void TokenWriter::end_document_in_sample() { impl_->in_sequence = false; }

void TokenWriter::set_best_fit_length(int64_t length) { impl_->best_fit_length = length; }

void TokenWriter::set_tokenizer(TokenizerRecord tokenizer) { impl_->tokenizer = std::move(tokenizer); }

void TokenWriter::finish() {
  impl_->put_index();
  impl_->tokens.sync();
  impl_->put_meta();
  impl_->meta.sync();
  impl_->index.sync();
  const std::filesystem::path& index_path = impl_->index.path();
  if (remove_file(index_path)) sync_folder_of(index_path);
  // Removes old checksums first: they must not exist beside the new .bin.
  if (remove_file(impl_->meta.path())) sync_folder_of(index_path);
  impl_->tokens.rename();
  impl_->meta.rename();
  impl_->index.rename();
  sync_folder_of(index_path);
}

}  // namespace gptrain::data
