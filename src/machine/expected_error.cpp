#include "machine/expected_error.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>

#include "config/parallelism.h"

namespace gptrain::inline machine {
namespace {

// The table of src/report/README.md, which tests/unit/planner/test_published.cpp computes.
constexpr std::array<PublishedErrors, 4> errors = {{
    {.device = "A100", .compute_capability = 8.0, .sharded = false, .steps = 22, .mean = 0.071, .largest = 0.263},
    {.device = "A100", .compute_capability = 8.0, .sharded = true, .steps = 17, .mean = 0.040, .largest = 0.114},
    {.device = "H100", .compute_capability = 9.0, .sharded = false, .steps = 5, .mean = 0.056, .largest = 0.068},
    {.device = "H100", .compute_capability = 9.0, .sharded = true, .steps = 11, .mean = 0.084, .largest = 0.131},
}};

}  // namespace

std::string ExpectedError::text() const {
  return fmt::format("a step's expected error is {:.0f}% ({})", 100 * share, source);
}

std::span<const PublishedErrors> published_errors() { return errors; }

ExpectedError published_error(double compute_capability, int64_t zero) {
  PublishedErrors all{};
  for (const PublishedErrors& row : errors) {
    if (row.compute_capability == compute_capability && row.sharded == cuts_weights(zero))
      return {row.largest,
              fmt::format("measured: the largest of {} published steps on {} {} ZeRO 3, {:.1f}% on average", row.steps,
                          row.device, row.sharded ? "with" : "without", 100 * row.mean)};
    all.steps += row.steps;
    all.largest = std::max(all.largest, row.largest);
  }
  return {all.largest,
          fmt::format("assumed: the largest of {} published steps, none of which is on such a device", all.steps)};
}

}  // namespace gptrain::machine
