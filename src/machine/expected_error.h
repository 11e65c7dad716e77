// Expected error of a predicted step.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace gptrain::inline machine {

struct ExpectedError {
  double share = 0;         // error over predicted time; 0: not known
  std::string source = {};  // origin of the figure: "assumed: ...", "measured: ..."

  std::string text() const;  // "a step's expected error is 20% (assumed: ...)"
};

// Errors of predicted steps that were published, each predicted by profiles made without it.
struct PublishedErrors {
  std::string_view device;  // "A100"
  double compute_capability;
  bool sharded;  // with ZeRO 3, otherwise without
  int64_t steps;
  double mean, largest;  // shares of the published step
};
std::span<const PublishedErrors> published_errors();

// Returns the largest error of published steps on the device's generation, with ZeRO 3 or without; of all steps if none
// is of that generation.
ExpectedError published_error(double compute_capability, int64_t zero);

}  // namespace gptrain::machine
