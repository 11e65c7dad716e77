// The files of a source of tokens, by their names.
#pragma once

#include <filesystem>
#include <string_view>

namespace gptrain {

// PREFIX with ".bin" or ".idx" put behind it; a dot inside PREFIX is part of the name.
std::filesystem::path token_file_path(const std::filesystem::path& prefix, std::string_view suffix);

// Whether `path` leads to a source of tokens: a PREFIX, or a file without an index.
bool is_token_file(const std::filesystem::path& path);
// Whether it is a file without an index (flat_tokens.h); false where nothing is there.
bool is_flat_token_file(const std::filesystem::path& path);

}  // namespace gptrain
