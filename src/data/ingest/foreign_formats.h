// Recognizes formats that hold no texts, or hold them in a way that is not read, by their first bytes.
#pragma once

#include <filesystem>
#include <string_view>

namespace gptrain::inline data {

// Returns true for a control character that texts do not have.
bool is_control(char c);

// Returns true if `start`, the first bytes of a file, begins a Parquet file and no text.
bool is_parquet(std::string_view start);

// Throws Error(data), with file and format, if `start`, the first decompressed bytes, begins an unsupported format: an
// archive, another compression, Arrow, UTF-16, tokens, a Git LFS pointer and others.
void refuse_foreign_format(const std::filesystem::path& path, std::string_view start);

// Throws Error(data): "PATH is IS: REMEDY".
[[noreturn]] void refuse_format(const std::filesystem::path& path, std::string_view is, std::string_view remedy);

// Remedy for a file of tokens.
constexpr std::string_view not_packed_again =
    "it is not packed again: name it in data.train, or join token files with `gptrain data join`";

// Remedy for a DVC pointer.
constexpr std::string_view fetch_dvc = "fetch the data with dvc pull, and give the file that it names";

}  // namespace gptrain::data
