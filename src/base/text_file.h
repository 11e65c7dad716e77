// Whole texts, each with a limit: a pipe or a device may go on for ever.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace gptrain::inline base {

constexpr int64_t max_text_bytes = int64_t{1} << 26;       // limit of a text that a command reads as a whole
constexpr int64_t max_tokenizer_bytes = int64_t{1} << 27;  // limit of a tokenizer's file

// Beginning of the file that Git LFS leaves in place of one that was not fetched.
constexpr std::string_view git_lfs_pointer = "version https://git-lfs.github.com/spec/";

// Throws Error(usage) where there is more than max_text_bytes.
std::string read_standard_input();
// Throws Error(usage), naming the file, where it cannot be read, has more than `most_bytes`, or is a Git LFS pointer.
std::string read_text_file(const std::filesystem::path& path, int64_t most_bytes = max_text_bytes);

}  // namespace gptrain::base
