// Names of tensors with errors of compressed gradients, of their factors, and of islands' state.
#pragma once

#include <cstdint>
#include <fmt/format.h>
#include <string>
#include <string_view>

namespace gptrain::inline checkpoint {

// Returns the part before the slash of the names of a copy of the errors, counted from 0: those of a data rank or, if
// sums are compressed between nodes only, of a node.
inline std::string residual_kind(int64_t copy) { return fmt::format("residual.{:03}", copy); }

// Returns the part before the slash of the names of factors with `rank` vectors. `both`: of right and left factors.
inline std::string factor_kind(int64_t rank, bool both) { return fmt::format("factor{}.{:02}", both ? "s" : "", rank); }

// Returns the part before the slash of the names of an island's values of a column of the optimizer's state. Islands
// are counted from 0; the first has the column's own name.
inline std::string island_kind(std::string_view column, int64_t island) {
  return island == 0 ? std::string(column) : fmt::format("{}.{:03}", column, island);
}

}  // namespace gptrain::checkpoint
