// What is wrong with a file of a checkpoint, without the file's name, which the reader of the file adds.
#pragma once

#include <cstddef>
#include <fmt/format.h>
#include <utility>

#include "base/error.h"
#include "base/printable.h"

namespace gptrain {

// Throws Error(checkpoint). Text that the file holds is shown with escapes and cut.
template <typename... Args>
[[noreturn]] void fault(fmt::format_string<Args...> format, Args&&... args) {
  constexpr size_t max_bytes = 400;
  throw Error(ExitCode::checkpoint, printable(fmt::format(format, std::forward<Args>(args)...), max_bytes));
}

}  // namespace gptrain
