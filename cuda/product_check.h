// Decides if a library's algorithm may be used for a product.
//
// Libraries have had algorithms that omitted the end of a sum's depth, or gave different bits from run to run, at
// shapes that their own tests did not cover. So a chosen algorithm runs twice before use, on the product's own
// operands: the corner tiles and other tiles of the result must differ from the own kernel's sums by no more than
// rounding explains, every element must be written, and both runs must give the same bits. Otherwise it is rejected,
// and the next fastest is tried.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/product_check.h"
#include "stream.h"

namespace gptrain::inline cuda {

class ProductCheck {
 public:
  // Waits for the stream, then copies from the device to the host.
  using Download = std::function<void(void* host, const void* device, int64_t bytes)>;

  ProductCheck(Stream stream, Download download) : stream_(stream), download_(std::move(download)) {}

  // Returns the fault of the algorithm that `run` queues; empty: none. Calls `run` up to twice. Leaves the results
  // undefined. `bias_gradient`: a second result [1, m], the sums over the rows of the operand [depth, m] that is stored
  // transposed; not given: none. `scratch`: product_check_bytes, aligned to 8 bytes; `run` may use it as well. Waits
  // for the device.
  std::string fault(const ExpectedProduct& expected, const Matrix& bias_gradient, const std::function<void()>& run,
                    std::byte* scratch) const;

 private:
  struct Bits {
    uint64_t sum = 0, unwritten = 0;
    bool operator==(const Bits&) const = default;
  };
  std::vector<Bits> run_and_take_bits(const ExpectedProduct& expected, const Matrix& bias_gradient,
                                      const std::function<void()>& run, std::byte* scratch) const;
  Bits bits_of(const Matrix& result, std::byte* scratch) const;
  float worst_distance(const ExpectedProduct& expected, std::byte* scratch) const;

  Stream stream_;
  Download download_;
};

// Returns the fastest candidate (by `milliseconds`) without a fault; nullopt if there is none. A later candidate is
// preferred to an earlier one only if it takes less than `clearly` (below 1) times its time. fault_of(candidate)
// returns a text, empty if there is no fault. strike(candidate, fault) is called for each rejected candidate.
template <typename Candidate, typename FaultOf, typename Strike>
std::optional<Candidate> fastest_sound(std::vector<Candidate> candidates, float clearly, const FaultOf& fault_of,
                                       const Strike& strike) {
  while (!candidates.empty()) {
    auto best = candidates.begin();
    for (auto candidate = best; candidate != candidates.end(); ++candidate)
      if (candidate->milliseconds < clearly * best->milliseconds) best = candidate;
    const std::string fault = fault_of(std::as_const(*best));
    if (fault.empty()) return *best;
    strike(std::as_const(*best), fault);
    candidates.erase(best);
  }
  return std::nullopt;
}

// Returns the reason why no cuBLASLt algorithm serves a product: all were rejected, the last for `last_fault`; if that
// is empty, the library has none for it.
std::string why_unserved(const std::string& last_fault);

}  // namespace gptrain::cuda
