#include "data/token_paths.h"

#include <fmt/format.h>
#include <string>
#include <system_error>

namespace gptrain::inline data {

std::filesystem::path token_file_path(const std::filesystem::path& prefix, std::string_view suffix) {
  return prefix.native() + std::string(suffix);
}

std::filesystem::path shard_path(const std::filesystem::path& prefix, int64_t number) {
  return fmt::format("{}-{:05}", prefix.native(), number);
}

bool is_flat_token_file(const std::filesystem::path& path) {
  std::error_code ignored;
  return !std::filesystem::exists(token_file_path(path, ".idx"), ignored) &&
         std::filesystem::is_regular_file(path, ignored);
}

std::filesystem::path path_of_tokens(const std::filesystem::path& path) {
  return is_flat_token_file(path) ? path : token_file_path(path, ".bin");
}

bool is_token_file(const std::filesystem::path& path) {
  std::error_code ignored;
  return is_flat_token_file(path) || (std::filesystem::exists(token_file_path(path, ".idx"), ignored) &&
                                      std::filesystem::exists(token_file_path(path, ".bin"), ignored));
}

}  // namespace gptrain::data
