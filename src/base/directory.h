// The entries of a folder.
#pragma once

#include <filesystem>
#include <system_error>
#include <vector>

namespace gptrain::inline base {

// Returns the paths of the folder's entries, unordered. Throws nothing: `error` is set if the folder cannot be read to
// its end.
std::vector<std::filesystem::path> paths_in(const std::filesystem::path& folder, std::error_code& error);

}  // namespace gptrain::base
