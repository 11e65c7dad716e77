#include "data/token_file.h"

#include <algorithm>
#include <bit>
#include <fmt/format.h>
#include <limits>
#include <string>
#include <utility>

#include "base/crc32c.h"
#include "base/error.h"
#include "data/damaged.h"
#include "data/token_paths.h"

namespace gptrain::inline data {
namespace {

using namespace token_index;

static_assert(std::endian::native == std::endian::little, "token files are little-endian and read without conversion");

MappedFile open_part(const std::filesystem::path& prefix, std::string_view suffix) {
  std::filesystem::path path = token_file_path(prefix, suffix);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    const std::filesystem::file_status named = std::filesystem::status(prefix, ignored);
    if (std::filesystem::exists(named) && !std::filesystem::is_directory(named))
      throw Error(ExitCode::data, "cannot read {}: not a regular file", prefix.native());
    throw Error(ExitCode::data,
                "{} does not exist (a data path is the PREFIX of PREFIX.bin and PREFIX.idx, which `gptrain data pack` "
                "writes, or a file of llm.c, nanoGPT or numpy)",
                path.native());
  }
  return MappedFile(std::move(path));
}

std::string_view dtype_code_name(uint8_t code) {
  static constexpr std::array<std::string_view, 9> names = {"unknown", "u8",  "i8",  "i16", "i32",
                                                            "i64",     "f64", "f32", "u16"};
  return code < names.size() ? names[code] : names[0];
}

}  // namespace

TokenFile::TokenFile(FlatTokens flat)
    : tokens_(std::move(flat.file)), first_byte_(flat.first_byte), format_(flat.format), dtype_(flat.dtype) {
  if (num_tokens() == 0) damaged(tokens_, first_byte_, "the file holds no tokens");
}

TokenFile::TokenFile(const std::filesystem::path& path, bool checksums, std::optional<DType> dtype)
    : TokenFile(dtype || is_flat_token_file(path) ? TokenFile(open_flat_tokens(path, dtype))
                                                  : TokenFile(Prefix{path}, checksums)) {}

TokenFile::TokenFile(const Prefix& prefix, bool checksums)
    : index_(open_part(prefix.path, ".idx")),
      tokens_(open_part(prefix.path, ".bin")),
      meta_(read_token_meta(prefix.path)) {
  check_header();
  check_sequences();
  check_boundaries();
  if (best_fit_length() > 0) check_samples();
  index_->check();
  if (meta_ && checksums) {
    compare_with_checksums();
    checked_ = std::make_unique<std::atomic<bool>[]>(meta_->blocks.size());
  }
  if (num_tokens() == 0) damaged(tokens_, 0, "the file holds no tokens");
}

int64_t TokenFile::length_at(int64_t sequence) const { return header_bytes + 4 * sequence; }
int64_t TokenFile::offset_at(int64_t sequence) const { return length_at(num_sequences_) + 8 * sequence; }
int64_t TokenFile::boundary_at(int64_t boundary) const { return offset_at(num_sequences_) + 8 * boundary; }

void TokenFile::check_header() {
  const int64_t size = index_->size_bytes();
  const auto magic_bytes = static_cast<int64_t>(magic.size());
  if (size < magic_bytes || std::memcmp(index_->data(), magic.data(), magic.size()) != 0) {
    damaged(*index_, 0, "the file does not start with \"MMIDIDX\", so it is not the index of a token file");
  }
  if (size < header_bytes) damaged(*index_, size, "the file ends here, inside its header of {} bytes", header_bytes);

  const auto found_version = index_->load<uint64_t>(version_at);
  if (found_version != version)
    damaged(*index_, version_at, "version {}, but only {} is known", found_version, version);

  const auto code = index_->load<uint8_t>(dtype_at);
  if (code != u16_code && code != i32_code) {
    damaged(*index_, dtype_at, "dtype code {} ({}) is not supported; tokens must be u16 (code {}) or i32 (code {})",
            code, dtype_code_name(code), u16_code, i32_code);
  }
  dtype_ = code == u16_code ? DType::u16 : DType::i32;

  // Divides instead of multiplying: the counts may be any 64-bit numbers.
  const auto num_sequences = index_->load<uint64_t>(num_sequences_at);
  const auto num_boundaries = index_->load<uint64_t>(num_boundaries_at);
  const auto room_bytes = static_cast<uint64_t>(size - header_bytes);
  if (num_sequences > room_bytes / 12) {
    damaged(*index_, num_sequences_at, "{} sequences do not fit in a file of {} bytes: truncated or damaged",
            num_sequences, size);
  }
  const uint64_t boundary_bytes = room_bytes - 12 * num_sequences;
  if (num_sequences > 0 && num_boundaries <= boundary_bytes / 8 &&
      boundary_bytes - 8 * num_boundaries == num_sequences) {
    damaged(*index_, size - static_cast<int64_t>(num_sequences),
            "the index of a multimodal dataset, with a mode for each of {} sequences: gptrain trains on text only",
            num_sequences);
  }
  if (boundary_bytes % 8 != 0 || num_boundaries != boundary_bytes / 8) {
    damaged(*index_, num_boundaries_at,
            "{} sequences and {} document boundaries do not make a file of {} bytes: truncated or damaged",
            num_sequences, num_boundaries, size);
  }
  if (num_boundaries == 0) damaged(*index_, num_boundaries_at, "no document boundaries; there must be at least one");
  num_sequences_ = static_cast<int64_t>(num_sequences);
  num_boundaries_ = static_cast<int64_t>(num_boundaries);
}

void TokenFile::check_sequences() const {
  const int64_t token_bytes = dtype_bytes(dtype_);
  int64_t end = 0;
  for (int64_t i = 0; i < num_sequences_; ++i) {
    const auto length = index_->load<int32_t>(length_at(i));
    if (length < 0) damaged(*index_, length_at(i), "sequence {} has the negative length {}", i, length);
    const auto offset = index_->load<int64_t>(offset_at(i));
    if (offset != end) {
      damaged(*index_, offset_at(i), "sequence {} starts at {} in the .bin, but the one before it ends at {}", i,
              offset, end);
    }
    // Cannot overflow: `end` is within the file, and a sequence takes less than 2^33 bytes.
    end += length * token_bytes;
    if (end > tokens_.size_bytes()) {
      damaged(tokens_, tokens_.size_bytes(), "the file ends here, but sequence {} of its index reaches to byte {}", i,
              end);
    }
  }
  if (end != tokens_.size_bytes()) {
    damaged(tokens_, end, "the sequences of the index end here, but the file goes on to byte {}", tokens_.size_bytes());
  }
}

void TokenFile::check_boundaries() const {
  int64_t previous = 0;
  for (int64_t i = 0; i < num_boundaries_; ++i) {
    const auto boundary = index_->load<int64_t>(boundary_at(i));
    if (i == 0 && boundary != 0) {
      damaged(*index_, boundary_at(i), "the first document starts at sequence {}, must be 0", boundary);
    }
    if (boundary < previous || boundary > num_sequences_) {
      damaged(*index_, boundary_at(i), "document boundary {} is sequence {}, must be from {} to {}", i, boundary,
              previous, num_sequences_);
    }
    previous = boundary;
  }
  if (previous != num_sequences_) {
    damaged(*index_, boundary_at(num_boundaries_ - 1), "the last document ends at sequence {}, must be {}", previous,
            num_sequences_);
  }
}

// Checks that the index has the samples that PREFIX.meta.json announces.
void TokenFile::check_samples() const {
  for (int64_t i = 0; i < num_samples(); ++i) {
    const int64_t tokens = sample(i).count;
    if (1 <= tokens && tokens <= best_fit_length() + 1) continue;
    damaged(*index_, boundary_at(i),
            "sample {} has {} tokens, but best_fit_length = {} of its .meta.json allows 1 to {}", i, tokens,
            best_fit_length(), best_fit_length() + 1);
  }
}

int64_t TokenFile::sequence_start(int64_t sequence) const {
  const int64_t bytes = sequence < num_sequences_ ? index_->load<int64_t>(offset_at(sequence)) : tokens_.size_bytes();
  return bytes / dtype_bytes(dtype_);
}

TokenFile::Range TokenFile::document(int64_t document) const {
  if (!index_) return {0, num_tokens()};
  if (best_fit_length() == 0) return sample(document);
  const int64_t first = sequence_start(document);
  return {first, sequence_start(document + 1) - first};
}

TokenFile::Range TokenFile::sample(int64_t sample) const {
  const int64_t first = sequence_start(index_->load<int64_t>(boundary_at(sample)));
  const int64_t end = sequence_start(index_->load<int64_t>(boundary_at(sample + 1)));
  return {first, end - first};
}

// Returns the last document that begins at or before the token; earlier ones that begin there are empty.
int64_t TokenFile::document_of(int64_t token) const {
  int64_t found = 0;
  for (int64_t end = num_documents(); end - found > 1;) {
    const int64_t middle = found + (end - found) / 2;
    (document(middle).first <= token ? found : end) = middle;
  }
  return found;
}

void TokenFile::document_starts(Range range, int32_t* out) const {
  int64_t number = document_of(range.first);
  Range current = document(number);
  for (int64_t i = 0; i < range.count; ++i) {
    // The index was sound when opened; it ends here only if it has become unreadable.
    while (range.first + i >= current.first + current.count && number + 1 < num_documents())
      current = document(++number);
    out[i] = static_cast<int32_t>(std::clamp<int64_t>(current.first - range.first, 0, range.count));
  }
  if (index_) index_->check();
}

void TokenFile::compare_with_checksums() const {
  if (meta_->bytes == tokens_.size_bytes() && meta_->tokens == num_tokens()) return;
  throw Error(ExitCode::data,
              "{} has {} bytes, its .meta.json says {}: the file is damaged, or the .meta.json belongs to another",
              tokens_.path().native(), tokens_.size_bytes(), meta_->bytes);
}

void TokenFile::check_block(int64_t block) const {
  std::atomic<bool>& checked = checked_[block];
  if (checked) return;
  const int64_t first = block * checksum_block_bytes;
  const int64_t bytes = std::min(checksum_block_bytes, tokens_.size_bytes() - first);
  const uint32_t crc = crc32c(tokens_.data() + first, bytes);
  tokens_.check();
  if (crc != meta_->blocks[block])
    throw BadChecksum(ExitCode::data,
                      "{}, byte {}: the {} bytes from here on do not have the checksum in its .meta.json",
                      tokens_.path().native(), first, bytes);
  checked = true;
}

SourceRecord TokenFile::identity() const {
  SourceRecord record{.tokens = num_tokens()};
  if (meta_) {
    record.checksum = crc32c(meta_->blocks.data(), meta_->blocks.size() * sizeof(uint32_t));
    if (!index_) return record;
    record.documents = crc32c(index_->data(), index_->size_bytes());
    index_->check();
    return record;
  }
  record.covered = SourceRecord::Covered::ends;
  if (index_) {
    record.covered = SourceRecord::Covered::index_and_ends;
    record.checksum = crc32c(index_->data(), index_->size_bytes());
    index_->check();
  }
  constexpr int64_t most_bytes = int64_t{1} << 20;
  const int64_t size = tokens_.size_bytes(), bytes = std::min(size, most_bytes);
  record.checksum = crc32c(&size, sizeof size, record.checksum);
  for (const int64_t first : {int64_t{0}, (size - bytes) / 2, size - bytes})
    record.checksum = crc32c(tokens_.data() + first, bytes, record.checksum);
  tokens_.check();
  return record;
}

void TokenFile::read(Range range, int64_t vocab_size, int32_t* out) const {
  if (checked_ && range.count > 0) {
    const int64_t token_bytes = dtype_bytes(dtype_);
    const int64_t last = ((range.first + range.count) * token_bytes - 1) / checksum_block_bytes;
    for (int64_t block = range.first * token_bytes / checksum_block_bytes; block <= last; ++block) check_block(block);
  }
  if (dtype_ == DType::u16) {
    read_as<uint16_t>(range, vocab_size, out);
  } else {
    read_as<int32_t>(range, vocab_size, out);
  }
}

template <typename T>
void TokenFile::read_as(Range range, int64_t vocab_size, int32_t* out) const {
  // Aligned: the file is mapped at a page, and a header ends at a multiple of the token size.
  const T* first = reinterpret_cast<const T*>(tokens_.data() + first_byte_) + range.first;
  uint32_t largest = 0;  // a negative token counts as larger than every vocabulary
  for (int64_t i = 0; i < range.count; ++i) {
    out[i] = static_cast<int32_t>(first[i]);
    largest = std::max(largest, static_cast<uint32_t>(first[i]));
  }
  tokens_.check();
  if (largest < vocab_size && largest <= uint32_t{std::numeric_limits<int32_t>::max()}) return;
  const T* bad = std::find_if(first, first + range.count, [&](T token) { return token < 0 || token >= vocab_size; });
  const int64_t position = range.first + (bad - first);
  throw BadToken(position,
                 fmt::format("{}, byte {}: token {} at position {} is outside the vocabulary of {} (model.vocab_size "
                             "must be above every token)",
                             tokens_.path().native(), first_byte_ + position * static_cast<int64_t>(sizeof(T)), *bad,
                             position, vocab_size));
}

std::string_view stored_type(const TokenFile& file) {
  const bool is_unsigned = file.format() != TokenFormat::megatron && file.dtype() == DType::i32;
  return is_unsigned ? "u32" : dtype_name(file.dtype());
}

}  // namespace gptrain::data
