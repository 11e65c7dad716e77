#include "train/run_files.h"

#include <algorithm>
#include <fmt/format.h>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.h"
#include "base/json.h"
#include "train/folder.h"

namespace gptrain::inline train {

namespace fs = std::filesystem;

namespace {

// Keys of every run.json. Its other keys depend on the config, which a resumed run may change.
constexpr const char* memory_keys[] = {"total_parameters", "peak_bytes", "tokens_per_step"};

// Returns true if the file is plain JSON as gptrain writes it and hardly anybody else: a config with all sections of
// `text`, or a run.json.
bool is_from_gptrain(const fs::path& path, const std::string& text) {
  std::ifstream file(path, std::ios::binary);
  const nlohmann::json there = parse_json_or_discard(std::string(std::istreambuf_iterator<char>(file), {}));
  if (!there.is_object()) return false;
  if (path.filename() == memory_name)
    return std::all_of(std::begin(memory_keys), std::end(memory_keys),
                       [&](const char* key) { return there.contains(key); });
  const nlohmann::json sections = parse_json(text);
  for (const auto& section : sections.items())
    if (!there.contains(section.key())) return false;
  return true;
}

}  // namespace

fs::path moved_aside(const fs::path& path, int number) { return fs::path(path).concat(fmt::format(".old-{}", number)); }

std::string write_run_file(const fs::path& path, const std::string& text) {
  std::error_code unknown;
  std::string warning;
  if (fs::is_regular_file(path, unknown) && !is_from_gptrain(path, text)) {
    int number = 1;
    while (fs::exists(fs::symlink_status(moved_aside(path, number), unknown))) ++number;
    const fs::path renamed = moved_aside(path, number);
    fs::rename(path, renamed, unknown);
    if (unknown)
      throw Error(ExitCode::usage, "cannot rename {} to {}: {}", path.string(), renamed.string(), unknown.message());
    warning = fmt::format("{} was not written by gptrain; it is kept as {}", path.string(), renamed.string());
  }
  write_whole_file(path, text);
  return warning;
}

void refuse_to_replace_config(const fs::path& given, const fs::path& out, const std::string& text) {
  const auto is_given = [&](const char* name) {
    std::error_code missing;
    return fs::equivalent(given, out / name, missing);
  };
  const bool is_replaced = is_given(memory_name) || (is_given(config_name) && !is_from_gptrain(given, text));
  if (!is_replaced) return;
  throw Error(ExitCode::usage,
              "run.out = {}: the run writes its own {} there, which would replace {}: set run.out to another folder, "
              "such as {}",
              out.string(), given.filename().string(), given.string(), (out / "run").lexically_normal().string());
}

}  // namespace gptrain::train
