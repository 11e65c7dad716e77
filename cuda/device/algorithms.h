// Which of cuBLASLt's algorithms serve which products: found by timing, and remembered (see products.h).
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

namespace gptrain {

// In a record, the algorithm of a product that cuBLASLt does not take, and of a product with more than a bias in its
// epilogue where the product alone and own kernels take its place.
inline constexpr std::string_view own_kernel = "own kernel";
inline constexpr std::string_view apart = "apart";

// A product as the library knows it, D [m, n] = op(A) op(B) (+ D), and the algorithm once there is one.
struct Served {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, d;
  int64_t depth = 0;
  uint32_t align_a = 0, align_b = 0, align_d = 0;  // bytes, of the addresses
  std::string name;                                // in records
  std::string text;                                // for people: the op and its shape
  std::string_view otherwise;                      // own_kernel or apart; empty: nothing takes the library's place
  bool known = false;
  std::optional<cublasLtMatmulAlgo_t> algorithm;  // known, and none: what is there otherwise
  std::string fault;                              // of the algorithm that was struck out last

  // f32 sums, and scales in f32. Errors of these name the product.
  void begin();
  template <typename Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    check_cublas(cublasLtMatmulDescSetAttribute(&operation, attribute, &value, sizeof value), text);
  }
  // Of the memory by columns, before its operation.
  void lay_out(cublasLtMatrixLayoutOpaque_t& matrix, DType dtype, int64_t rows, int64_t cols, int64_t ld) const;
};

// What one run of a product works on.
struct LtOperands {
  const void *a, *b;
  void* d;
  bool accumulate;
  std::byte* workspace;
  int64_t workspace_bytes = gpu_product_workspace_bytes;
};

// What the library calls an algorithm's settings, for people.
struct AlgorithmSettings {
  int32_t id = -1, tile = -1, stages = -1, split_k = -1, reduction_scheme = -1, cluster = -1;

  std::string text() const;
};
AlgorithmSettings settings_of(const cublasLtMatmulAlgo_t& algorithm);

// What the product must come to (see ProductCheck::fault).
struct Expected {
  ExpectedProduct product;
  Matrix bias_gradient;
};

// All functions that take a product want its descriptors complete. Throws Error(device).
class Algorithms {
 public:
  Algorithms(Stream stream, const std::string& cache);  // of run.algorithm_cache
  ~Algorithms() { cublasLtDestroy(library_); }
  Algorithms(const Algorithms&) = delete;
  Algorithms& operator=(const Algorithms&) = delete;

  // See Products.
  std::string text() const { return known_.text(); }
  void use(const std::string& record) { known_.use(record); }
  std::string take_warnings() { return known_.take_warnings(); }

  // Whether what serves the product is settled by a record, the run's or that of earlier ones, and has passed the check
  // of `fastest` in this process, which is done now if it has not been. What fails it is forgotten, with a warning.
  bool recall(Served& served, const LtOperands& operands, const Expected& expected);
  // False: the library does not serve it. Without a choice, the one of the run's record, which was checked by the rank
  // that chose it, or else the library's own first one that starts.
  bool run(Served& served, const LtOperands& operands);

  struct Candidate {
    cublasLtMatmulAlgo_t algorithm;
    float milliseconds;
  };
  // Of those that start and compute what they must, twice the same bits; none where there is none. Those that do not
  // are warned of.
  std::optional<Candidate> fastest(Served& served, const LtOperands& operands, const Expected& expected);
  // Whatever the rules say, for benches: all that the library offers within operands.workspace_bytes, timed.
  struct Surveyed {
    Candidate candidate;
    int64_t workspace_bytes;
    bool allowed;  // by the rules, which `fastest` keeps
  };
  std::vector<Surveyed> survey(Served& served, const LtOperands& operands) const;
  // As ProductCheck::fault has it.
  std::string fault_of(Served& served, const LtOperands& operands, const Expected& expected,
                       const cublasLtMatmulAlgo_t& algorithm) const;
  // Queues the product. Throws where the library does not take it with this algorithm.
  void start(Served& served, const LtOperands& operands, const cublasLtMatmulAlgo_t& algorithm) const;
  // Finds and settles the fastest, where `recall` does not.
  void choose(Served& served, const LtOperands& operands, const Expected& expected);
  // None: what is there otherwise.
  void settle(Served& served, const std::optional<cublasLtMatmulAlgo_t>& algorithm);
  // The same, for this run and later ones on such a device.
  void settle_timed(Served& served, const std::optional<cublasLtMatmulAlgo_t>& algorithm);

  // What is timed is timed several times by turns, so that what slows the device down for a while slows all.
  static constexpr int timing_rounds = 3;
  // What is within 2% of what the library thinks better loses: what is measured differs by as much.
  static constexpr float clearly = 0.98F;
  // Of several runs of the body, one after another.
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
    float milliseconds_since(const Event& before) const;  // waits for this one

   private:
    cudaEvent_t event_ = nullptr;
  };

  // Takes the algorithm from the run's record, where that has one that this device takes.
  void look_up(Served& served);
  bool is_taken_here(Served& served, const cublasLtMatmulAlgo_t& algorithm) const;
  std::string fault_of_recorded(Served& served, const LtOperands& operands, const Expected& expected,
                                const std::string& recorded) const;
  struct Offers {
    int64_t workspace_bytes;
    uint32_t reduction_schemes;  // a mask; unsplit sums are allowed with any
    int count;
  };
  std::vector<cublasLtMatmulHeuristicResult_t> ask(Served& served, const Offers& offers) const;
  std::vector<Candidate> candidates(Served& served) const;
  // Times those that start, and leaves the others out.
  template <typename Entry, typename CandidateOf>
  void time_all(Served& served, const LtOperands& operands, std::vector<Entry>& entries,
                const CandidateOf& candidate_of) const;
  cublasStatus_t try_to_start(Served& served, const LtOperands& operands, const cublasLtMatmulAlgo_t& algorithm) const;

  Stream stream_;
  ProductCheck check_;
  cublasLtHandle_t library_ = nullptr;
  KnownAlgorithms known_;
};

}  // namespace gptrain
