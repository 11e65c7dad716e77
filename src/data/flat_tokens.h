// Token files without an index: those of llm.c and nanoGPT, and numpy arrays.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "data/mapped_file.h"

namespace gptrain::inline data {

enum class TokenFormat : uint8_t {
  megatron,  // PREFIX.bin and PREFIX.idx
  llmc,      // header of 256 i32, then u16 (GPT-2) or u32 (Llama 3)
  nanogpt,   // u16 without a header
  npy,       // numpy.save: one dimension, u16, u32 or i32
};
std::string format_name(TokenFormat format);

namespace llmc {
constexpr int64_t header_bytes = 256 * 4;
constexpr int32_t magic_u16 = 20240520;  // GPT-2
constexpr int32_t magic_u32 = 20240801;  // Llama 3
constexpr int32_t version_u16 = 1;
constexpr int32_t version_u32 = 7;
}  // namespace llmc

// Returns the bytes that numpy.save (2.x) writes before an array of `tokens` u16 or, for DType::i32, u32.
std::string npy_header(DType dtype, int64_t tokens);

struct FlatTokens {
  MappedFile file;
  TokenFormat format;
  DType dtype;         // u16, or i32 for any four-byte type
  int64_t first_byte;  // start of the tokens, a multiple of their size
};

// Detects the format by the header. A file without a header is nanoGPT's if its name ends in ".bin". With `dtype`, the
// file must be bare tokens of that type, whatever its name. Warns on standard error if tokens that are read as u16
// are probably u32. Throws Error(data), with file and byte, for other files, for a header that does not match the file,
// and for the .bin or .idx of a file with an index; Error(usage) for a header or an index if `dtype` is given.
FlatTokens open_flat_tokens(const std::filesystem::path& path, std::optional<DType> dtype = {});

}  // namespace gptrain::data
