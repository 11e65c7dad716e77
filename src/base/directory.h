// What is in a folder.
#pragma once

#include <filesystem>
#include <system_error>
#include <vector>

namespace gptrain {

// The paths of what is in a folder, in no order. Throws nothing: where not all of it can be read, `error` says why.
std::vector<std::filesystem::path> paths_in(const std::filesystem::path& folder, std::error_code& error);

}  // namespace gptrain
