// Chooses cuBLASLt algorithms for products by timing and remembers them (see products.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "device/cublas.h"
#include "known_algorithms.h"
#include "ops/gpu_scratch.h"
#include "product_check.h"
#include "stream.h"

namespace gptrain::inline cuda {

// Entries of a record in place of an algorithm. own_kernel: cuBLASLt does not serve the product. apart: instead of an
// epilogue with more than a bias, the product runs alone, followed by our own kernels.
inline constexpr std::string_view own_kernel = "own kernel";
inline constexpr std::string_view run_unfused = "apart";

// A product as cuBLASLt describes it, D [m, n] = op(A) op(B) (+ D), with its algorithm once chosen.
struct Served {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, d;
  int64_t depth = 0;
  uint32_t align_a = 0, align_b = 0, align_d = 0;  // alignment of the addresses in bytes
  std::string name;                                // key in records
  std::string text;                                // the op and its shape, for messages
  std::string_view otherwise;                      // replacement for the library: own_kernel or apart; empty: none
  bool known = false;
  std::optional<cublasLtMatmulAlgo_t> algorithm;  // nullopt while `known`: use `otherwise`
  std::string fault;                              // fault of the algorithm rejected last

  // Initialises the operation: f32 sums and scales. Errors name the product.
  void begin();
  template <typename Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    check_cublas(cublasLtMatmulDescSetAttribute(&operation, attribute, &value, sizeof value), text);
  }
  // Describes a matrix as it lies in memory (column-major), before its transposition.
  void lay_out(cublasLtMatrixLayoutOpaque_t& matrix, DType dtype, int64_t rows, int64_t cols, int64_t ld) const;
};

// Operands of one run of a product.
struct LtOperands {
  const void *a, *b;
  void* d;
  bool accumulate;
  std::byte* workspace;
  int64_t workspace_bytes = gpu_product_workspace_bytes;
};

// An algorithm's settings in the library's terms, for messages.
struct AlgorithmSettings {
  int32_t id = -1, tile = -1, stages = -1, split_k = -1, reduction_scheme = -1, cluster = -1;

  std::string text() const;
};
AlgorithmSettings settings_of(const cublasLtMatmulAlgo_t& algorithm);

// The reference for a product's result (see ProductCheck::fault).
struct Expected {
  ExpectedProduct product;
  Matrix bias_gradient;
};

// Chooses, checks and runs algorithms. REQUIRES: the descriptors of a passed product are complete. Methods throw
// Error(device).
class Algorithms {
 public:
  Algorithms(Stream stream, const std::string& cache);  // `cache`: run.algorithm_cache
  ~Algorithms() { cublasLtDestroy(library_); }
  Algorithms(const Algorithms&) = delete;
  Algorithms& operator=(const Algorithms&) = delete;

  // Implement the methods of Products.
  std::string text() const { return known_.text(); }
  void use(const std::string& record) { known_.use(record); }
  std::string take_warnings() { return known_.take_warnings(); }

  // Returns true if a record (of this run or earlier ones) names the product's algorithm and it passes the check of
  // `fastest`, which runs once per process. A recorded algorithm that fails is removed, with a warning.
  bool recall(Served& served, const LtOperands& operands, const Expected& expected);
  // Runs the product. Returns false if the library does not serve it. Without a previous choice, uses the run's
  // recorded algorithm, which the rank that chose it has checked, or else the first of the library's offers that
  // starts.
  bool run(Served& served, const LtOperands& operands);

  struct Candidate {
    cublasLtMatmulAlgo_t algorithm;
    float milliseconds;
  };
  // Returns the fastest algorithm that starts and computes the right result, with the same bits twice; nullopt if there
  // is none. Warns about faulty ones.
  std::optional<Candidate> fastest(Served& served, const LtOperands& operands, const Expected& expected);
  // Times all algorithms that the library offers within operands.workspace_bytes, allowed or not. For benches.
  struct Surveyed {
    Candidate candidate;
    int64_t workspace_bytes;
    bool allowed;  // true: `fastest` would consider it
  };
  std::vector<Surveyed> survey(Served& served, const LtOperands& operands) const;
  // Returns a fault as ProductCheck::fault does.
  std::string fault_of(Served& served, const LtOperands& operands, const Expected& expected,
                       const cublasLtMatmulAlgo_t& algorithm) const;
  // Queues the product. Throws if the library refuses this algorithm.
  void start(Served& served, const LtOperands& operands, const cublasLtMatmulAlgo_t& algorithm) const;
  // Chooses the fastest algorithm, unless `recall` finds a recorded one.
  void choose(Served& served, const LtOperands& operands, const Expected& expected);
  // Fixes the algorithm for this run; nullopt: the replacement `otherwise`.
  void set_algorithm(Served& served, const std::optional<cublasLtMatmulAlgo_t>& algorithm);
  // Fixes it also for later runs on such a device.
  void set_and_record(Served& served, const std::optional<cublasLtMatmulAlgo_t>& algorithm);

  // Algorithms are timed in several rounds, so that a temporary slowdown of the device affects all of them.
  static constexpr int timing_rounds = 3;
  // A candidate must be 2% faster than one that the library ranks higher: measurements vary by as much.
  static constexpr float clearly = 0.98F;
  // Returns the time of several consecutive runs of the body.
  template <typename Body>
  float milliseconds(const Body& body) const {
    constexpr int runs = 4;
    const Event begin, end;
    begin.record(stream_);
    for (int i = 0; i < runs; ++i) body();
    end.record(stream_);
    return end.milliseconds_since(begin);
  }

 private:
  class Event {
   public:
    Event();
    ~Event() { cudaEventDestroy(event_); }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;

    void record(Stream stream) const;
    float milliseconds_since(const Event& before) const;  // waits for this event

   private:
    cudaEvent_t event_ = nullptr;
  };

  // Takes the algorithm from the run's record, if this device accepts it.
  void look_up(Served& served);
  bool is_taken_here(Served& served, const cublasLtMatmulAlgo_t& algorithm) const;
  std::string fault_of_recorded(Served& served, const LtOperands& operands, const Expected& expected,
                                const std::string& recorded) const;
  struct Offers {
    int64_t workspace_bytes;
    uint32_t reduction_schemes;  // bit mask; unsplit sums are always allowed
    int count;
  };
  std::vector<cublasLtMatmulHeuristicResult_t> ask(Served& served, const Offers& offers) const;
  std::vector<Candidate> candidates(Served& served) const;
  // Times all algorithms and removes those that do not start.
  template <typename Entry, typename CandidateOf>
  void time_all(Served& served, const LtOperands& operands, std::vector<Entry>& entries,
                const CandidateOf& candidate_of) const;
  cublasStatus_t try_to_start(Served& served, const LtOperands& operands, const cublasLtMatmulAlgo_t& algorithm) const;

  Stream stream_;
  ProductCheck check_;
  cublasLtHandle_t library_ = nullptr;
  KnownAlgorithms known_;
};

}  // namespace gptrain::cuda
