// Names inside a run's folder of checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace gptrain::inline checkpoint {

// Prefix of folders that are not checkpoints: being written, being deleted, or left by a crash.
inline constexpr std::string_view temporary_prefix = ".tmp-";
// Suffix of checkpoints that were set aside because the run has gone on from an older one.
inline constexpr std::string_view abandoned_suffix = ".abandoned";
inline constexpr std::string_view manifest_name = "manifest.json";
inline constexpr std::string_view tokenizer_name = "tokenizer.json";

std::filesystem::path checkpoints_folder(const std::filesystem::path& out);  // OUT/checkpoints
std::string step_folder_name(int64_t step);                                  // "step-00000120"
std::string temporary_folder_name(int64_t step);                             // ".tmp-step-00000120"
std::string rank_file_name(int64_t rank);                                    // "rank-00000.safetensors"
std::string rank_part_name(int64_t rank, int64_t part);                      // "rank-00000-00000.safetensors"

// Returns the path in the form PARENT/NAME, without dots and trailing slash; relative if `path` is, unless NAME would
// then stand alone or be "..".
std::filesystem::path plain_path(const std::filesystem::path& path);

// Returns the step of a folder named by step_folder_name, else none.
std::optional<int64_t> step_of_folder_name(std::string_view name);

// Returns the step of an abandoned checkpoint, "step-00000120.abandoned" or "step-00000120.abandoned-2", else none.
std::optional<int64_t> step_of_abandoned_name(std::string_view name);

}  // namespace gptrain::checkpoint
