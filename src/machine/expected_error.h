// Expected error of a predicted step.
#pragma once

#include <string>

namespace gptrain::inline machine {

struct ExpectedError {
  double share = 0;         // error over predicted time
  std::string source = {};  // origin of the figure: "assumed: ...", "measured: ..."

  std::string text() const;  // "a step's expected error is 20% (assumed: ...)"
};

}  // namespace gptrain::machine
