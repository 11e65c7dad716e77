// Names of tensors with errors of compressed gradients, and of their factors.
#pragma once

#include <cstdint>
#include <fmt/format.h>
#include <string>

namespace gptrain::inline checkpoint {

// Returns the part before the slash of the names of a data rank's errors, counted from 0.
inline std::string residual_kind(int64_t data_rank) { return fmt::format("residual.{:03}", data_rank); }

// Returns the part before the slash of the names of factors with `rank` vectors.
inline std::string factor_kind(int64_t rank) { return fmt::format("factor.{:02}", rank); }

}  // namespace gptrain::checkpoint
