// How far predicted steps may be off.
#pragma once

#include <string>

namespace gptrain {

// How far predicted steps may be off, as a share of them, and where that is from: "assumed: ...".
struct ExpectedError {
  double share = 0;
  std::string source = {};

  std::string text() const;  // "a step's expected error is 20% (assumed: ...)"
};

}  // namespace gptrain
