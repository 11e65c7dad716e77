// Files of run.out that describe the run: config.json, and run.json with the numbers of parameters and of bytes
// (memory_json).
#pragma once

#include <filesystem>
#include <string>

namespace gptrain::inline train {

inline constexpr const char* config_name = "config.json";
inline constexpr const char* memory_name = "run.json";

// Returns the path to which `path` can be renamed: PATH.old-NUMBER.
std::filesystem::path moved_aside(const std::filesystem::path& path, int number);

// Writes `text` to `path`. A file of a user there is kept as PATH.old-N; an earlier one of gptrain, plain JSON with the
// same sections, is replaced. Returns a warning if a file was kept, else empty. THROWS Error(usage) if that
// file cannot be renamed, or `path` cannot be written.
std::string write_run_file(const std::filesystem::path& path, const std::string& text);

// THROWS Error(usage) if a run in the folder `out` would replace `given`, the config file named on the command line,
// which a user wrote. `text`: the run's config.json.
void refuse_to_replace_config(const std::filesystem::path& given, const std::filesystem::path& out,
                              const std::string& text);

}  // namespace gptrain::train
