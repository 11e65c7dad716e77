#include "machine/expected_error.h"

#include <fmt/format.h>

namespace gptrain::inline machine {

std::string ExpectedError::text() const {
  return fmt::format("a step's expected error is {:.0f}% ({})", 100 * share, source);
}

}  // namespace gptrain::machine
