// Matrix products of the CUDA backend: the seam between it and a library.
//
// device/products.cpp is cuBLASLt's. host/products.cpp is the CPU backend's, for kernels on the host harness.
//
// Many algorithms serve one product, and which is fastest only a measurement tells; it fixes the result's bits, too. So
// algorithms are chosen once, before the first step, and kept:
//
//   1. A resumed run gives the checkpoint's record to use_algorithms.
//   2. Rank 0 plays a step with `choose` in the place of `run`, all other ops left out. (Each rank its own part of the
//      model, where rank 0 does not have all of it.)
//   3. Ranks take over each other's records with use_algorithms, rank 0's last, so that equal products have equal bits.
//   4. algorithms() goes into every checkpoint.
//
// Where cuBLASLt can add an activation or the bias' gradient to a product (ops/fused_product.h), that and the product
// alone with own kernels after it are two more candidates: which is faster depends on device and shape.
//
// What timing chose is checked before it is used (product_check.h); where it is wrong, the next fastest is taken.
//
// What was timed is kept in AlgorithmRecord::cache_file (run.algorithm_cache), so that the next run on such a device
// need not choose again. `choose` checks what a record names as it checks what it has timed, once in a process, be it
// the checkpoint's or the file's (known_algorithms.h). No algorithm is taken that wants more workspace than is planned,
// whose bits may differ from run to run, or that rounds partial sums to 16 bits: of those that split a sum, the ones that
// add f32 parts in a step of their own or, where the result is f32, in turns in the result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "ops/ops.h"
#include "stream.h"

namespace gptrain {

// Operands and scratch are memory of the stream's device; `scratch` is at least the op's gpu_scratch_bytes, aligned to
// 256 bytes. One thread calls at a time. Throws Error(device), naming the op and its shape, when the library fails, and
// where it has no FP8 products for the device: all others have an own kernel, too.
class Products {
 public:
  virtual ~Products() = default;

  // As ops.h says of the op; queued on the stream. A product for which nothing was chosen or taken over is served by
  // the algorithm that the library thinks best, from then on. Once a product has run or was chosen, its next runs
  // neither wait nor allocate, and may be captured in a CUDA graph: the address of the operands is part of what is
  // captured.
  virtual void run(const LinearForward& op, std::byte* scratch, int64_t scratch_bytes) = 0;
  virtual void run(const LinearBackwardInput& op, std::byte* scratch, int64_t scratch_bytes) = 0;
  virtual void run(const LinearBackwardWeight& op, std::byte* scratch, int64_t scratch_bytes) = 0;
  virtual void run(const ScaledProduct& op, std::byte* scratch, int64_t scratch_bytes) = 0;

  // Finds the fastest algorithm by running several on the op's own operands, where none is recorded yet. Waits for the
  // device. What y, dx, dw and c hold afterwards is undefined; the bias' gradient is left alone. Not while a CUDA graph
  // is captured. Does nothing where there is no choice.
  virtual void choose(const LinearForward& op, std::byte* scratch, int64_t scratch_bytes) = 0;
  virtual void choose(const LinearBackwardInput& op, std::byte* scratch, int64_t scratch_bytes) = 0;
  virtual void choose(const LinearBackwardWeight& op, std::byte* scratch, int64_t scratch_bytes) = 0;
  virtual void choose(const ScaledProduct& op, std::byte* scratch, int64_t scratch_bytes) = 0;

  // What serves each product that was run or chosen or that a record named, as AlgorithmRecord::text gives it.
  virtual std::string algorithms() const = 0;
  // Takes over another's algorithms(), in the place of what was chosen for the same products. Before the first step. A
  // record of another device or library is left, which a warning says.
  virtual void use_algorithms(const std::string& record) = 0;

  // What the user should be told since the last call: lines, each with its newline; mostly none.
  virtual std::string take_warnings() = 0;
};

// On the calling thread's current device. `algorithm_cache`: as make_cuda_backend's. Throws Error(device).
std::unique_ptr<Products> make_products(Stream stream, const std::string& algorithm_cache);

}  // namespace gptrain
