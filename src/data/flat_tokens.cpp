#include "data/flat_tokens.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include "base/enum_array.h"
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
  if (file.size_bytes() < llmc::header_bytes) damaged(file, file.size_bytes(), "the file ends within llm.c's header");
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
  const std::string_view all(reinterpret_cast<const char*>(file.data()), file.size_bytes());
  if (file.size_bytes() < npy_start_bytes || all[6] != 1) damaged(file, 6, "only version 1 of numpy's format is known");
  const int64_t first = npy_start_bytes + file.load<uint16_t>(8);
  if (first > file.size_bytes()) damaged(file, 8, "the header ends at byte {}, behind the file's end", first);
  const std::string_view text = all.substr(npy_start_bytes, first - npy_start_bytes);
  const DType* const dtype = dtype_of_npy(text);
  if (dtype == nullptr)
    damaged(file, npy_start_bytes,
            "the array must be of numpy.uint16, uint32 or int32, little-endian: make one with: np.save(OUT, "
            "np.load(IN).astype(np.uint32))");
  const int64_t tokens = (file.size_bytes() - first) / dtype_bytes(*dtype);
  const std::string shape = fmt::format("'shape': ({},)", tokens);
  if (first + tokens * dtype_bytes(*dtype) != file.size_bytes() || text.find(shape) == std::string_view::npos)
    damaged(file, npy_start_bytes, "the array must have one dimension, as long as the file: {}", shape);
  if (first % dtype_bytes(*dtype) != 0)
    damaged(file, first, "the array does not begin at a multiple of its tokens' size");
  return {std::move(file), TokenFormat::npy, *dtype, first};
}

// Warns once per file, because a run opens a file several times.
void warn_of_width(const fs::path& path, std::string_view read_as, std::string_view sign, std::string_view remedy) {
  static std::mutex mutex;
  static std::set<fs::path> warned;
  const std::scoped_lock lock(mutex);
  if (!warned.insert(path).second) return;
  print_err("warning: {} is read as {}, and {}: {}\n", path.native(), read_as, sign, remedy);
}

constexpr int64_t most_groups = 4096;
std::string make_u32_of(std::string_view type) {
  return fmt::format("make u32 of it with: np.fromfile(IN, \"{}\").astype(np.uint32).tofile(OUT)", type);
}

// Warns if tokens of four bytes are probably halves of i64: every second one is 0, and others are not.
void warn_of_i64(const MappedFile& file, const fs::path& path, std::string_view read_as) {
  constexpr int64_t fewest = 16;
  const int64_t groups = std::min(most_groups, file.size_bytes() / 8);
  uint32_t lower = 0;
  uint32_t upper = 0;
  for (int64_t i = 0; i < groups; ++i) {
    lower |= static_cast<uint32_t>(file.load<int32_t>(8 * i));
    upper |= static_cast<uint32_t>(file.load<int32_t>(8 * i + 4));
  }
  if (groups < fewest || upper != 0 || lower == 0) return;
  warn_of_width(path, read_as, "its tokens look like the halves of i64, of which every second one is 0",
                "if it holds i64, " + make_u32_of("<i8"));
}

// Warns if tokens of u16 are probably the halves of wider ones: every second one is the upper half of an id.
void warn_of_wider(const MappedFile& file, const fs::path& path) {
  constexpr int64_t fewest_zeros = 16;  // if all upper halves are 0
  constexpr int64_t fewest = 64;        // if some are not, which is rarer in u16
  const int64_t pairs = std::min(most_groups, file.size_bytes() / 4);
  std::array<uint32_t, 2> largest{};      // maxima of the first and the second halves
  std::array<uint32_t, 2> largest_big{};  // the same, with bytes swapped
  uint32_t every_fourth = 0;
  for (int64_t i = 0; i < pairs; ++i) {
    for (size_t half = 0; half < 2; ++half) {
      const uint32_t value = file.load<uint16_t>(4 * i + 2 * static_cast<int64_t>(half));
      largest[half] = std::max(largest[half], value);
      largest_big[half] = std::max(largest_big[half], (value & 0xFF) << 8 | value >> 8);
      if (i % 2 == 1) every_fourth |= value;
    }
  }
  const auto looks_wide = [&](uint32_t upper, uint32_t lower) {
    return upper <= most_upper_half && lower > upper && pairs >= (upper == 0 ? fewest_zeros : fewest);
  };
  if (looks_wide(largest[1], largest[0])) {
    if (every_fourth == 0) return warn_of_i64(file, path, "u16");
    warn_of_width(path, "u16", fmt::format("every second token is {} at most", most_upper_half),
                  "if it holds u32, say so with --dtype u32, or with \"dtype\": \"u32\" beside its path in a config");
  } else if (looks_wide(largest_big[0], largest_big[1])) {
    warn_of_width(path, "u16", "its tokens look like those of u32 with the highest byte first",
                  "if they are, " + make_u32_of(">u4"));
  }
}

}  // namespace

std::string format_name(TokenFormat format) {
  constexpr EnumArray<TokenFormat, const char*, 4> names = {"megatron", "llm.c", "nanogpt", "npy"};
  return names[format];
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
                               std::min<int64_t>(file.size_bytes(), npy_start_bytes));
  const auto refuse_dtype = [&] {
    if (dtype)
      throw Error(ExitCode::usage, "dtype: {} has a header that says its type; leave the dtype out", path.native());
  };
  if (start.starts_with(npy_magic)) {
    refuse_dtype();
    return read_npy(std::move(file));
  }
  if (file.size_bytes() >= 2 * dtype_bytes(DType::i32)) {
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
    if (*dtype != DType::u16) warn_of_i64(file, path, "u32");
    return {std::move(file), TokenFormat::nanogpt, *dtype, 0};
  }
  for (const std::string_view suffix : {".idx", ".meta.json", ".pack.json"}) {
    if (!path.native().ends_with(suffix)) continue;
    throw Error(ExitCode::data, "{}: holds no tokens; name the token file that it belongs to by its PREFIX, {}",
                path.native(), path.native().substr(0, path.native().size() - suffix.size()));
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
  warn_of_wider(file, path);
  return {std::move(file), TokenFormat::nanogpt, DType::u16, 0};
}

}  // namespace gptrain::data
