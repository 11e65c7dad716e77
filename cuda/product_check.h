// Whether a library's algorithm may be used for a product.
//
// Libraries have had algorithms that left out the end of a sum's depth, or gave other bits from run to run, at shapes
// that their own tests had not. So what timing chose is run twice before it is used, on the product's own operands:
// tiles of the result, the corners' and others, must be what the own kernel sums, every element must have been written,
// and all bits must be the same both times. Otherwise it is struck out, and the next fastest takes its place.
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

namespace gptrain {

class ProductCheck {
 public:
  // Waits for the stream, then copies from the device.
  using Download = std::function<void(void* host, const void* device, int64_t bytes)>;

  ProductCheck(Stream stream, Download download) : stream_(stream), download_(std::move(download)) {}

  // What is wrong with the algorithm that `run` queues; empty: nothing. What it leaves in the results is undefined
  // afterwards. `bias_gradient`: a second result [1, n], the sums over rows of the product's factor [depth, m] that is
  // stored transposed; not given: there is none. `scratch`: product_check_bytes, which `run` may use, too, aligned to 8
  // bytes. Waits for the device.
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

// The fastest of the candidates, each of which has its `milliseconds`, that has no fault. One that comes earlier is
// better unless a later one is faster by a factor of `clearly`. fault_of(candidate): a text, empty for none.
// strike(candidate, fault) is told of those that were to be used and must not be.
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

// Why cuBLASLt serves a product by none of its algorithms: it offers none that starts, or `last_fault` was that of the
// last one that was struck out.
std::string why_unserved(const std::string& last_fault);

}  // namespace gptrain
