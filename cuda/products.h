// Matrix products of the CUDA backend: the seam between it and a library.
//
// device/products.cpp implements it with cuBLASLt; host/products.cpp, for the host harness, with the CPU backend.
//
// Many algorithms can serve a product. Only measuring tells the fastest, and the choice determines the result's bits.
// So algorithms are chosen once, before the first step, and kept:
//
//   1. A resumed run gives the checkpoint's record to use_algorithms.
//   2. Rank 0 runs a step that calls `choose` in place of `run` and skips all other ops. (Each rank does so for its own
//      part of the model, if rank 0 does not have all of it.)
//   3. Ranks take over each other's records with use_algorithms, rank 0's last, so that equal products have equal bits.
//   4. algorithms() goes into every checkpoint.
//
// If cuBLASLt can compute an activation or the bias gradient in a product's epilogue (ops/fused_product.h), the fused
// product and the product alone followed by our own kernels are two candidates: the faster one depends on device and
// shape.
//
// A chosen algorithm is checked before use (product_check.h); if it is faulty, the next fastest is taken.
//
// Timed algorithms are stored in AlgorithmRecord::cache_file (run.algorithm_cache), so that later runs on such a device
// need not choose again. `choose` checks a recorded algorithm like a timed one, once per process, whether from the
// checkpoint or the file (known_algorithms.h). Algorithms are excluded if they need more workspace than planned, if
// their bits may vary, or if they round partial sums to 16 bits. Split sums are allowed if f32 parts are added in a
// separate step or, for f32 results, in turn into the result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "ops/ops.h"
#include "stream.h"

namespace gptrain::inline cuda {

// REQUIRES: operands and scratch are memory of the stream's device; `scratch` has at least gpu_scratch_bytes of the op,
// aligned to 256 bytes; one thread calls at a time. Throws Error(device), with the op and its shape, if the library
// fails, or if it has no FP8 products for the device (all other products have an own kernel).
class Products {
 public:
  virtual ~Products() = default;

  // Computes an op as ops.h defines it; queued on the stream. Without an algorithm chosen or taken over, uses from then
  // on the one that the library ranks first. Once a product has run or been chosen, its runs neither wait nor allocate
  // and may be captured in a CUDA graph, which includes the operands' addresses.
  virtual void run(const LinearForward& op, std::byte* scratch, int64_t scratch_bytes) = 0;
  virtual void run(const LinearBackwardInput& op, std::byte* scratch, int64_t scratch_bytes) = 0;
  virtual void run(const LinearBackwardWeight& op, std::byte* scratch, int64_t scratch_bytes) = 0;
  virtual void run(const ScaledProduct& op, std::byte* scratch, int64_t scratch_bytes) = 0;

  // Finds the fastest algorithm by running several on the op's own operands, unless one is recorded. Waits for the
  // device. Leaves y, dx, dw and c undefined and the bias gradient unchanged. Must not run during a graph capture. Does
  // nothing if there is no choice.
  virtual void choose(const LinearForward& op, std::byte* scratch, int64_t scratch_bytes) = 0;
  virtual void choose(const LinearBackwardInput& op, std::byte* scratch, int64_t scratch_bytes) = 0;
  virtual void choose(const LinearBackwardWeight& op, std::byte* scratch, int64_t scratch_bytes) = 0;
  virtual void choose(const ScaledProduct& op, std::byte* scratch, int64_t scratch_bytes) = 0;

  // Returns the algorithm of each product that was run, chosen or recorded, as AlgorithmRecord::text.
  virtual std::string algorithms() const = 0;
  // Takes over another rank's algorithms(), replacing choices for the same products. REQUIRES: before the first step.
  // Ignores, with a warning, a record of another device or library.
  virtual void use_algorithms(const std::string& record) = 0;

  // Returns the warnings since the last call, a line each with its newline; usually "".
  virtual std::string take_warnings() = 0;
};

// Uses the calling thread's current device. `algorithm_cache`: as in make_cuda_backend. Throws Error(device).
std::unique_ptr<Products> make_products(Stream stream, const std::string& algorithm_cache);

}  // namespace gptrain::cuda
