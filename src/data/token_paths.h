// Names of the files of a token source.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace gptrain::inline data {

// Returns PREFIX with ".bin" or ".idx" appended; a dot inside PREFIX is part of the name.
std::filesystem::path token_file_path(const std::filesystem::path& prefix, std::string_view suffix);

// Returns PREFIX of shard `number` of a set: PREFIX-00000 is the first.
std::filesystem::path shard_path(const std::filesystem::path& prefix, int64_t number);

// Returns true if `path` is a PREFIX of a token file, or a file without an index.
bool is_token_file(const std::filesystem::path& path);
// Returns true if `path` is a file without an index (flat_tokens.h); false if nothing exists there.
bool is_flat_token_file(const std::filesystem::path& path);
// Returns the file with the tokens of a PREFIX, or of a file without an index.
std::filesystem::path path_of_tokens(const std::filesystem::path& path);

}  // namespace gptrain::data
