#include "data/flat_tokens.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/output.h"
#include "data/damaged.h"
#include "data/token_paths.h"

namespace gptrain::inline data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view npy_magic = "\x93NUMPY";
constexpr int64_t npy_start_bytes = 10;   // magic, version, length of the following text
constexpr uint32_t most_upper_half = 15;  // upper 16 bits of an id below 2^20; no vocabulary is larger

FlatTokens read_llmc(MappedFile file) {
  const bool narrow = file.load<int32_t>(0) == llmc::magic_u16;
  const auto version = file.load<int32_t>(4);
  const int32_t expected = narrow ? llmc::version_u16 : llmc::version_u32;
  if (version != expected) damaged(file, 4, "version {} of llm.c's format, but only {} is known", version, expected);
  const DType dtype = narrow ? DType::u16 : DType::i32;
  const int64_t tokens = file.load<int32_t>(8);
  const int64_t bytes = llmc::header_bytes + tokens * dtype_bytes(dtype);
  if (tokens < 0 || file.size_bytes() != bytes)
    damaged(file, 8, "the header counts {} tokens, which make {} bytes, but the file has {}", tokens, bytes,
            file.size_bytes());
  return {std::move(file), TokenFormat::llmc, dtype, llmc::header_bytes};
}

// Returns the dtype in the array's 'descr'; null if it is not a dtype of tokens.
const DType* dtype_of_npy(std::string_view text) {
  static constexpr DType narrow = DType::u16;
  static constexpr DType wide = DType::i32;
  if (text.find("'<u2'") != std::string_view::npos) return &narrow;
  return text.find("'<u4'") != std::string_view::npos || text.find("'<i4'") != std::string_view::npos ? &wide : nullptr;
}

FlatTokens read_npy(MappedFile file) {
  const std::string_view all(reinterpret_cast<const char*>(file.data()), static_cast<size_t>(file.size_bytes()));
  if (file.size_bytes() < npy_start_bytes || all[6] != 1) damaged(file, 6, "only version 1 of numpy's format is known");
  const int64_t first = npy_start_bytes + file.load<uint16_t>(8);
  if (first > file.size_bytes()) damaged(file, 8, "the header ends at byte {}, behind the file's end", first);
  const std::string_view text = all.substr(npy_start_bytes, static_cast<size_t>(first - npy_start_bytes));
  const DType* const dtype = dtype_of_npy(text);
  if (dtype == nullptr)
    damaged(file, npy_start_bytes, "the array must be of numpy.uint16, uint32 or int32, little-endian");
  const int64_t tokens = (file.size_bytes() - first) / dtype_bytes(*dtype);
  const std::string shape = fmt::format("'shape': ({},)", tokens);
  if (first + tokens * dtype_bytes(*dtype) != file.size_bytes() || text.find(shape) == std::string_view::npos)
    damaged(file, npy_start_bytes, "the array must have one dimension, as long as the file: {}", shape);
  if (first % dtype_bytes(*dtype) != 0) damaged(file, first, "the array begins at no multiple of its tokens' size");
  return {std::move(file), TokenFormat::npy, *dtype, first};
}

// Warns once per file, because a run opens a file several times.
void warn_of_u32(const fs::path& path) {
  static std::mutex mutex;
  static std::set<fs::path> warned;
  const std::scoped_lock lock(mutex);
  if (!warned.insert(path).second) return;
  print_err(
      "warning: {} is read as u16, and every second token is {} at most: if it holds u32, say so with --dtype u32, or "
      "with \"dtype\": \"u32\" beside its path in a config\n",
      path.native(), most_upper_half);
}

// Returns true if tokens of u16 are probably the halves of u32: every second one is the upper half of an id.
bool looks_like_u32(const MappedFile& file) {
  constexpr int64_t most_pairs = 4096;
  constexpr int64_t fewest_pairs = 16;         // if all upper halves are 0
  constexpr int64_t fewest_pairs_wide = 1024;  // if some are not, which is rarer in u16
  const int64_t pairs = std::min(most_pairs, file.size_bytes() / 4);
  uint32_t upper = 0;
  uint32_t lower = 0;
  for (int64_t i = 0; i < pairs; ++i) {
    lower = std::max<uint32_t>(lower, file.load<uint16_t>(4 * i));
    upper = std::max<uint32_t>(upper, file.load<uint16_t>(4 * i + 2));
  }
  if (upper > most_upper_half || lower <= upper) return false;
  return pairs >= (upper == 0 ? fewest_pairs : fewest_pairs_wide);
}

}  // namespace

std::string format_name(TokenFormat format) {
  constexpr std::array<const char*, 4> names = {"megatron", "llm.c", "nanogpt", "npy"};
  return names[static_cast<size_t>(format)];
}

std::string npy_header(DType dtype, int64_t tokens) {
  constexpr size_t alignment = 64;
  constexpr size_t growth_digits = 21;  // numpy leaves room for a longer first axis
  const std::string count = std::to_string(tokens);
  std::string text =
      fmt::format("{{'descr': '<u{}', 'fortran_order': False, 'shape': ({},), }}", dtype_bytes(dtype), count);
  text.append(growth_digits - std::min(count.size(), growth_digits), ' ');
  const size_t unaligned = static_cast<size_t>(npy_start_bytes) + text.size() + 1;
  text.append((alignment - unaligned % alignment) % alignment, ' ');
  text += '\n';
  std::string header(npy_magic);
  header += {'\1', '\0', static_cast<char>(text.size() & 0xFF), static_cast<char>(text.size() >> 8)};
  return header + text;
}

FlatTokens open_flat_tokens(const fs::path& path, std::optional<DType> dtype) {
  std::error_code ignored;
  if (dtype && fs::exists(token_file_path(path, ".idx"), ignored))
    throw Error(ExitCode::usage, "dtype: {}.idx says the type of its tokens; leave the dtype out", path.native());
  MappedFile file(path);
  const std::string_view start(reinterpret_cast<const char*>(file.data()),
                               static_cast<size_t>(std::min<int64_t>(file.size_bytes(), npy_start_bytes)));
  const auto refuse_dtype = [&] {
    if (dtype)
      throw Error(ExitCode::usage, "dtype: {} has a header that says its type; leave the dtype out", path.native());
  };
  if (start.starts_with(npy_magic)) {
    refuse_dtype();
    return read_npy(std::move(file));
  }
  if (file.size_bytes() >= llmc::header_bytes) {
    const auto magic = file.load<int32_t>(0);
    if (magic == llmc::magic_u16 || magic == llmc::magic_u32) {
      refuse_dtype();
      return read_llmc(std::move(file));
    }
  }
  if (dtype) {
    if (file.size_bytes() % dtype_bytes(*dtype) != 0)
      throw Error(ExitCode::data, "{}: {} bytes are no whole number of tokens of {}", path.native(), file.size_bytes(),
                  *dtype == DType::u16 ? "u16" : "u32");
    return {std::move(file), TokenFormat::nanogpt, *dtype, 0};
  }
  if (path.extension() != ".bin") {
    throw Error(ExitCode::data,
                "{}: no token file of llm.c, no .npy, and not the .bin of nanoGPT; `gptrain data pack` makes token "
                "files of texts",
                path.native());
  }
  if (fs::exists(fs::path(path).replace_extension(".idx"), ignored)) {
    throw Error(ExitCode::data, "{}: belongs to the index beside it; name both by their PREFIX, {}", path.native(),
                fs::path(path).replace_extension().native());
  }
  const fs::path prefix = fs::path(path).replace_extension();
  if (fs::exists(token_file_path(prefix, ".meta.json"), ignored)) {
    throw Error(ExitCode::data,
                "{}: its index {}.idx is missing, which {}.meta.json says it had: fetch the index, or pack it again",
                path.native(), prefix.native(), prefix.native());
  }
  if (file.size_bytes() % 2 != 0)
    throw Error(ExitCode::data, "{}: {} bytes are no whole number of u16 tokens, as nanoGPT writes them", path.native(),
                file.size_bytes());
  if (looks_like_u32(file)) warn_of_u32(path);
  return {std::move(file), TokenFormat::nanogpt, DType::u16, 0};
}

}  // namespace gptrain::data
