// Faults of a checkpoint's files. The message lacks the file's name, which the reader of the file adds.
#pragma once

#include <cstddef>
#include <fmt/format.h>
#include <utility>

#include "base/error.h"
#include "base/printable.h"

namespace gptrain::inline checkpoint {

// THROWS Error(checkpoint). Text from the file is shown escaped and cut short.
template <typename... Args>
[[noreturn]] void fault(fmt::format_string<Args...> format, Args&&... args) {
  constexpr size_t max_bytes = 400;
  throw Error(ExitCode::checkpoint, printable(fmt::format(format, std::forward<Args>(args)...), max_bytes));
}

}  // namespace gptrain::checkpoint
