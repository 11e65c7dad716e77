// Facts that follow from the ZeRO stage.
#pragma once

#include <cstdint>

namespace gptrain::inline config {

// Data that a ZeRO stage cuts into pieces, so that each data rank holds one (arXiv 1910.02054).
constexpr bool cuts_state(int64_t zero) { return zero >= 1; }  // master weights and optimizer state
constexpr bool cuts_gradients(int64_t zero) { return zero >= 2; }
constexpr bool cuts_weights(int64_t zero) { return zero >= 3; }

// Place of a rank's weights between the actions that use them. Weights that are not resident are gathered before use
// into memory of their own, by a single data rank as well.
enum class Residency : uint8_t {
  resident,  // whole, where the ops read them
  pieces,    // the rank's piece, in device memory
  away,      // beside optimizer state that is away: on the host or on disk
};

// Movement of a rank's parameters in a step.
struct ParameterFlow {
  Residency weights = Residency::resident;
  bool weights_return = false;  // resident weights come back after the update, and the next step awaits them
  bool sums_each_pass = false;  // gradients are summed after every micro-batch, not after the last
  // The weights that come back are those of the step before: its updates run beside this step.
  bool updates_delayed = false;

  bool gathers_weights() const { return weights != Residency::resident; }
  bool operator==(const ParameterFlow&) const = default;
};

// Returns the flow under a ZeRO stage. `asked`: residency of the weights if the stage does not cut them.
// `separate_updated_weights`: updates write weights in other memory than the ops read.
constexpr ParameterFlow parameter_flow(int64_t zero, Residency asked = Residency::resident,
                                       bool separate_updated_weights = false) {
  const Residency weights = cuts_weights(zero) && asked == Residency::resident ? Residency::pieces : asked;
  return {.weights = weights,
          .weights_return = (cuts_state(zero) || separate_updated_weights) && weights == Residency::resident,
          .sums_each_pass = cuts_gradients(zero)};
}

}  // namespace gptrain::config
