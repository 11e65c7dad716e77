#include "checkpoint/folder.h"

#include <charconv>
#include <fmt/format.h>
#include <system_error>

namespace gptrain::inline checkpoint {
namespace {

std::filesystem::path without_trailing_slash(std::filesystem::path path) {
  return path.has_filename() ? path : path.parent_path();
}

}  // namespace

std::filesystem::path checkpoints_folder(const std::filesystem::path& out) { return out / "checkpoints"; }

std::string step_folder_name(int64_t step) { return fmt::format("step-{:08}", step); }

std::string temporary_folder_name(int64_t step) { return std::string(temporary_prefix) + step_folder_name(step); }

std::string rank_file_name(int64_t rank) { return fmt::format("rank-{:05}.safetensors", rank); }
std::string rank_part_name(int64_t rank, int64_t part) {
  return fmt::format("rank-{:05}-{:05}.safetensors", rank, part);
}

std::filesystem::path plain_path(const std::filesystem::path& path) {
  const auto plain = without_trailing_slash(path.lexically_normal());
  if (plain.has_parent_path() && plain.filename() != "..") return plain;
  std::error_code no_working_folder;
  const std::filesystem::path absolute = std::filesystem::absolute(path, no_working_folder);
  return no_working_folder ? plain : without_trailing_slash(absolute.lexically_normal());
}

std::optional<int64_t> step_of_folder_name(std::string_view name) {
  constexpr std::string_view prefix = "step-";
  if (!name.starts_with(prefix)) return std::nullopt;
  int64_t step = -1;
  std::from_chars(name.data() + prefix.size(), name.data() + name.size(), step);
  // Other spellings, such as "step-120" or "step-00000120.old", are not gptrain's.
  if (step < 0 || step_folder_name(step) != name) return std::nullopt;
  return step;
}

std::optional<int64_t> step_of_abandoned_name(std::string_view name) {
  const size_t suffix = name.find(abandoned_suffix);
  if (suffix == std::string_view::npos) return std::nullopt;
  const std::string_view number = name.substr(suffix + abandoned_suffix.size());
  const bool is_ours = number.empty() || (number.size() > 1 && number.front() == '-' &&
                                          number.find_first_not_of("0123456789", 1) == std::string_view::npos);
  return is_ours ? step_of_folder_name(name.substr(0, suffix)) : std::nullopt;
}

}  // namespace gptrain::checkpoint
