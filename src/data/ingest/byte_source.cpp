#include "data/ingest/byte_source.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <system_error>
#include <unistd.h>

#include "base/error.h"
#include "base/file_error.h"
#include "base/output.h"
#include "base/units.h"

namespace gptrain::inline data {
namespace {

constexpr size_t buffer_bytes = size_t{1} << 18;

[[noreturn]] void throw_unreadable(const std::filesystem::path& path) {
  throw Error(ExitCode::data, "cannot read {}: {}", path.native(), std::generic_category().message(errno));
}

struct CompressionMagic {
  std::string_view name;
  std::unique_ptr<Decoder> (*make)();
};
constexpr CompressionMagic gzip{"gzip", make_gzip_decoder};
constexpr CompressionMagic zstd{"zstd", make_zstd_decoder};
constexpr CompressionMagic xz{"xz", make_xz_decoder};
constexpr CompressionMagic bzip2{"bzip2", make_bzip2_decoder};

// Returns null if `start` begins no known compression. A zstd file may begin with a skippable frame, as pzstd writes.
const CompressionMagic* find_compression(std::string_view start) {
  constexpr size_t bzip2_block = 4;  // position after "BZh" and a digit: a block, or the end of an empty file
  if (start.starts_with("\x1F\x8B")) return &gzip;
  const bool is_skipped =
      start.size() >= 4 && (static_cast<uint8_t>(start[0]) & 0xF0U) == 0x50U && start.substr(1, 3) == "\x2A\x4D\x18";
  if (is_skipped || start.starts_with("\x28\xB5\x2F\xFD")) return &zstd;
  if (start.starts_with(std::string_view("\xFD"
                                         "7zXZ\0",
                                         6))) {
    return &xz;
  }
  const std::string_view block = start.substr(std::min(start.size(), bzip2_block));
  if (start.starts_with("BZh") && (block.starts_with("1AY&SY") || block.starts_with("\x17\x72\x45\x38\x50\x90"))) {
    return &bzip2;
  }
  return nullptr;
}

}  // namespace

ByteSource::ByteSource(std::filesystem::path path) : path_(std::move(path)), buffer_(buffer_bytes) {
  file_ =
      path_ == "-" ? ::dup(STDIN_FILENO) : call_with_tries([&] { return ::open(path_.c_str(), O_RDONLY | O_CLOEXEC); });
  if (file_ < 0) throw_unreadable(path_);
  fill();
  if (const CompressionMagic* const found = find_compression(available())) {
    compression_ = found->name;
    decoder_ = found->make();
  }
}

ByteSource::~ByteSource() {
  if (file_ >= 0) ::close(file_);
}

// Reads up to `capacity` bytes, fewer only at the end.
size_t ByteSource::read_file(char* out, size_t capacity) {
  size_t produced = 0;
  while (!at_end_ && produced < capacity) {
    const ssize_t count = call_with_tries([&] { return ::read(file_, out + produced, capacity - produced); });
    if (count < 0) throw_unreadable(path_);
    at_end_ = count == 0;
    produced += static_cast<size_t>(count);
  }
  file_bytes_read_ += static_cast<int64_t>(produced);
  return produced;
}

// Reads until the buffer is full or the file ends. Returns false if no byte was read.
bool ByteSource::fill() {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  const size_t count = read_file(buffer_.data() + end_, buffer_.size() - end_);
  end_ += count;
  return count > 0;
}

// Skips zero bytes between streams and after the last. Returns false at the end of the file.
bool ByteSource::skip_zeros() {
  while (true) {
    while (begin_ < end_ && buffer_[begin_] == '\0') ++begin_;
    if (begin_ < end_) return true;
    if (!fill()) return false;
  }
}

// Refuses data after a compressed stream unless they begin another stream of the same format. REQUIRES: a byte is
// there.
void ByteSource::require_same_compression() {
  constexpr size_t magic_bytes = 10;
  if (end_ - begin_ < magic_bytes) fill();
  const CompressionMagic* const found = find_compression(available());
  if (found != nullptr && found->name == compression_) return;
  const auto at = file_bytes_read_ - static_cast<int64_t>(end_ - begin_);
  throw Error(
      ExitCode::data,
      "{}: the compressed data cannot be read beyond byte {}, where {} data end and {} begin: make a file of each "
      "part (head -c {}, tail -c +{})",
      path_.native(), at, compression_,
      found == nullptr ? std::string("other data") : fmt::format("{} data", found->name), at, at + 1);
}

// Tells once per file that its header asks for much memory.
void ByteSource::tell_memory() {
  if (told_memory_ || decoder_->unusual_memory_bytes() == 0) return;
  told_memory_ = true;
  print_err("note: {}: its {} window takes {} of memory\n", path_.native(), compression_,
            format_bytes(static_cast<double>(decoder_->unusual_memory_bytes())));
}

size_t ByteSource::read(char* out, size_t capacity) {
  size_t produced = 0;
  while (produced < capacity) {
    // Uncompressed data bypass the buffer.
    if (!decoder_ && begin_ == end_) return produced + read_file(out + produced, capacity - produced);
    if (begin_ == end_ && !fill() && !in_stream_) break;
    if (!decoder_) {
      const size_t count = std::min(capacity - produced, end_ - begin_);
      std::memcpy(out + produced, buffer_.data() + begin_, count);
      begin_ += count;
      produced += count;
      continue;
    }
    if (stream_ended_) {
      if (!skip_zeros()) break;
      require_same_compression();
    }
    stream_ended_ = false;
    try {
      const Decoder::Step step = decoder_->decode(available(), out + produced, capacity - produced);
      tell_memory();
      begin_ += step.consumed;
      produced += step.produced;
      in_stream_ = !step.ended;
      stream_ended_ = step.ended;
      if (step.ended) decoder_->restart();
      if (step.consumed == 0 && step.produced == 0 && !step.ended && !fill()) {
        throw DecodeFault("they end too early: truncated?");
      }
    } catch (const DecodeMemoryFault& fault) {
      throw Error(ExitCode::data, "{}: {}", path_.native(), fault.what());
    } catch (const DecodeFault& fault) {
      throw Error(ExitCode::data, "{}: the compressed data cannot be read: {}", path_.native(), fault.what());
    }
  }
  return produced;
}

}  // namespace gptrain::data
