#include "device/algorithms.h"

#include <algorithm>
#include <cstdlib>
#include <cuda_runtime.h>
#include <fmt/format.h>
#include <limits>

#include "base/error.h"
#include "device/status.h"
#include "ops/gpu_scratch.h"

namespace gptrain::inline cuda {
namespace {

// Returns the library's serialized form, word by word.
std::string algorithm_text(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  for (const uint64_t word : algorithm.data) text += fmt::format("{}{:x}", text.empty() ? "" : " ", word);
  return text;
}

std::optional<cublasLtMatmulAlgo_t> parse_algorithm(const std::string& text) {
  cublasLtMatmulAlgo_t algorithm;
  const char* next = text.c_str();
  for (uint64_t& word : algorithm.data) {
    char* end = nullptr;
    word = std::strtoull(next, &end, 16);
    if (end == next) return std::nullopt;
    next = end;
  }
  return algorithm;
}

bool names_no_algorithm(const std::string& recorded) { return recorded == own_kernel || recorded == run_unfused; }

// Returns the allowed ways to add up partial sums: in f32, in a fixed order. An f32 result may also serve as the
// accumulator, to which the library adds the parts in turn.
uint32_t reduction_schemes(Served& served) {
  uint32_t type = 0;
  size_t written = 0;
  check_cublas(cublasLtMatrixLayoutGetAttribute(&served.d, CUBLASLT_MATRIX_LAYOUT_TYPE, &type, sizeof type, &written),
               served.text);
  constexpr uint32_t in_f32 = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  if (type != CUDA_R_32F) return in_f32;
  return in_f32 | CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
}

// Returns true if the algorithm needs at most the planned workspace and sums its parts, if any, completely and in f32.
bool is_allowed(const cublasLtMatmulAlgo_t& algorithm, size_t workspace_bytes, Served& served) {
  if (static_cast<int64_t>(workspace_bytes) > gpu_product_workspace_bytes || !sums_are_whole(algorithm, served.depth))
    return false;
  uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
  size_t written = 0;
  const cublasStatus_t has_scheme = cublasLtMatmulAlgoConfigGetAttribute(
      &algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction, sizeof reduction, &written);
  return has_scheme != CUBLAS_STATUS_SUCCESS || reduction == CUBLASLT_REDUCTION_SCHEME_NONE ||
         (reduction & reduction_schemes(served)) != 0;
}

AlgorithmRecord empty_record() {
  int device = 0;
  check_cuda(cudaGetDevice(&device), "asking for the device");
  cudaDeviceProp properties;
  check_cuda(cudaGetDeviceProperties(&properties, device), "asking what the device is");
  // The fastest algorithm depends on the number of multiprocessors, in which devices of one name differ.
  return {fmt::format("{}, {} multiprocessors", properties.name, properties.multiProcessorCount),
          fmt::format("cuBLASLt {}", cublasLtGetVersion())};
}

}  // namespace

AlgorithmSettings settings_of(const cublasLtMatmulAlgo_t& algorithm) {
  const auto setting = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto value) {
    size_t written = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof value, &written);
    return status == CUBLAS_STATUS_SUCCESS ? static_cast<int32_t>(value) : -1;
  };
  return {.id = setting(CUBLASLT_ALGO_CONFIG_ID, int32_t{}),
          .tile = setting(CUBLASLT_ALGO_CONFIG_TILE_ID, uint32_t{}),
          .stages = setting(CUBLASLT_ALGO_CONFIG_STAGES_ID, uint32_t{}),
          .split_k = setting(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, int32_t{}),
          .reduction_scheme = setting(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, uint32_t{}),
          .cluster = setting(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, uint16_t{})};
}

std::string AlgorithmSettings::text() const {
  return fmt::format("algorithm {}, tile {}, stages {}, cluster {}, split-K {}, reduction scheme {}", id, tile, stages,
                     cluster, split_k, reduction_scheme);
}

void check_cublas(cublasStatus_t status, std::string_view what) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw Error(ExitCode::device, "{}: cuBLASLt error {} ({})", what, cublasLtGetStatusString(status),
                cublasLtGetStatusName(status));
  }
}

void Served::begin() { check_cublas(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), text); }

void Served::lay_out(cublasLtMatrixLayoutOpaque_t& matrix, DType dtype, int64_t rows, int64_t cols, int64_t ld) const {
  check_cublas(
      cublasLtMatrixLayoutInit(&matrix, cuda_type(dtype), static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), ld),
      text);
}

Algorithms::Event::Event() { check_cuda(cudaEventCreate(&event_), "making an event"); }

void Algorithms::Event::record(Stream stream) const {
  check_cuda(cudaEventRecord(event_, stream), "recording an event");
}

float Algorithms::Event::milliseconds_since(const Event& before) const {
  float milliseconds = 0;
  check_cuda(cudaEventSynchronize(event_), "timing an algorithm");
  check_cuda(cudaEventElapsedTime(&milliseconds, before.event_, event_), "timing an algorithm");
  return milliseconds;
}

Algorithms::Algorithms(Stream stream, const std::string& cache)
    : stream_(stream),
      check_(stream,
             [stream](void* host, const void* device, int64_t bytes) {
               check_cuda(cudaMemcpyAsync(host, device, static_cast<size_t>(bytes), cudaMemcpyDefault, stream),
                          "checking an algorithm");
               check_cuda(cudaStreamSynchronize(stream), "checking an algorithm");
             }),
      known_(empty_record(), cache) {
  check_cublas(cublasLtCreate(&library_), "starting the library");
}

void Algorithms::look_up(Served& served) {
  const std::string* const recorded = known_.find(served.name);
  if (recorded == nullptr) return;
  if (names_no_algorithm(*recorded)) return set_algorithm(served, std::nullopt);
  const auto algorithm = parse_algorithm(*recorded);
  if (algorithm && is_taken_here(served, *algorithm)) return set_algorithm(served, algorithm);
  known_.warn(fmt::format("{} ({}): the run's record names an algorithm that does not run here; another one is used",
                          served.text, served.name));
}

bool Algorithms::recall(Served& served, const LtOperands& operands, const Expected& expected) {
  const auto fault = [&](const std::string& recorded) {
    return fault_of_recorded(served, operands, expected, recorded);
  };
  const std::string* const recorded = known_.recall(served.name, served.text, fault);
  if (recorded == nullptr) {
    served.known = false;
    return false;
  }
  if (!served.known) look_up(served);
  return true;
}

std::string Algorithms::fault_of_recorded(Served& served, const LtOperands& operands, const Expected& expected,
                                          const std::string& recorded) const {
  if (names_no_algorithm(recorded)) return "";
  const auto algorithm = parse_algorithm(recorded);
  if (!algorithm) return fmt::format("\"{}\" is not an algorithm of cuBLASLt", recorded);
  const std::string name = "cuBLASLt's " + settings_of(*algorithm).text();
  if (!is_taken_here(served, *algorithm) || try_to_start(served, operands, *algorithm) != CUBLAS_STATUS_SUCCESS)
    return name + ": it does not run here";
  const std::string fault = fault_of(served, operands, expected, *algorithm);
  return fault.empty() ? "" : fmt::format("{}: {}", name, fault);
}

bool Algorithms::is_taken_here(Served& served, const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t result{};
  return cublasLtMatmulAlgoCheck(library_, &served.operation, &served.a, &served.b, &served.d, &served.d, &algorithm,
                                 &result) == CUBLAS_STATUS_SUCCESS &&
         is_allowed(algorithm, result.workspaceSize, served);
}

bool Algorithms::run(Served& served, const LtOperands& operands) {
  if (!served.known) look_up(served);
  if (served.known) {
    if (served.algorithm) start(served, operands, *served.algorithm);
    return served.algorithm.has_value();
  }
  for (const Candidate& candidate : candidates(served)) {
    if (try_to_start(served, operands, candidate.algorithm) != CUBLAS_STATUS_SUCCESS) continue;
    set_algorithm(served, candidate.algorithm);
    return true;
  }
  set_algorithm(served, std::nullopt);
  return false;
}

template <typename Entry, typename CandidateOf>
void Algorithms::time_all(Served& served, const LtOperands& operands, std::vector<Entry>& entries,
                          const CandidateOf& candidate_of) const {
  std::erase_if(entries, [&](Entry& entry) {
    return try_to_start(served, operands, candidate_of(entry).algorithm) != CUBLAS_STATUS_SUCCESS;
  });
  for (int round = 0; round < timing_rounds; ++round) {
    for (Entry& entry : entries) {
      Candidate& candidate = candidate_of(entry);
      const auto run = [&] { start(served, operands, candidate.algorithm); };
      candidate.milliseconds = std::min(candidate.milliseconds, milliseconds(run));
    }
  }
}

std::optional<Algorithms::Candidate> Algorithms::fastest(Served& served, const LtOperands& operands,
                                                         const Expected& expected) {
  std::vector<Candidate> found = candidates(served);
  time_all(served, operands, found, [](Candidate& candidate) -> Candidate& { return candidate; });
  const auto fault = [&](const Candidate& candidate) {
    return fault_of(served, operands, expected, candidate.algorithm);
  };
  const auto strike = [&](const Candidate& candidate, const std::string& why) {
    served.fault = why;
    known_.warn(fmt::format("{} ({}): cuBLASLt's {} is not used: {}", served.text, served.name,
                            settings_of(candidate.algorithm).text(), why));
  };
  return fastest_sound(std::move(found), clearly, fault, strike);
}

std::string Algorithms::fault_of(Served& served, const LtOperands& operands, const Expected& expected,
                                 const cublasLtMatmulAlgo_t& algorithm) const {
  static_assert(product_check_bytes <= gpu_product_workspace_bytes);
  const auto run = [&] { start(served, operands, algorithm); };
  return check_.fault(expected.product, expected.bias_gradient, run, operands.workspace);
}

std::vector<Algorithms::Surveyed> Algorithms::survey(Served& served, const LtOperands& operands) const {
  constexpr int most = 64;
  std::vector<Surveyed> found;
  for (const auto& result : ask(served, {operands.workspace_bytes, CUBLASLT_REDUCTION_SCHEME_MASK, most})) {
    found.push_back({{result.algo, std::numeric_limits<float>::infinity()},
                     static_cast<int64_t>(result.workspaceSize),
                     is_allowed(result.algo, result.workspaceSize, served)});
  }
  time_all(served, operands, found, [](Surveyed& surveyed) -> Candidate& { return surveyed.candidate; });
  return found;
}

void Algorithms::choose(Served& served, const LtOperands& operands, const Expected& expected) {
  if (recall(served, operands, expected)) return;
  const std::optional<Candidate> best = fastest(served, operands, expected);
  if (!best) return set_algorithm(served, std::nullopt);  // not stored on disk: the next run tries again
  set_and_record(served, best->algorithm);
}

void Algorithms::set_algorithm(Served& served, const std::optional<cublasLtMatmulAlgo_t>& algorithm) {
  served.known = true;
  served.algorithm = algorithm;
  if (algorithm) return known_.keep(served.name, algorithm_text(*algorithm));
  if (served.otherwise.empty()) return;
  known_.keep(served.name, std::string(served.otherwise));
  if (served.otherwise == own_kernel) {
    known_.warn(fmt::format("{} ({}): {}: an own kernel, which is much slower, computes it", served.text, served.name,
                            why_unserved(served.fault)));
  }
}

void Algorithms::set_and_record(Served& served, const std::optional<cublasLtMatmulAlgo_t>& algorithm) {
  set_algorithm(served, algorithm);
  known_.keep_timed(served.name, *known_.find(served.name));
}

// Returns the algorithms that the library offers, in its order of expected speed.
std::vector<cublasLtMatmulHeuristicResult_t> Algorithms::ask(Served& served, const Offers& offers) const {
  cublasLtMatmulPreferenceOpaque_t preference;
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check_cublas(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value), served.text);
  };
  check_cublas(cublasLtMatmulPreferenceInit(&preference), served.text);
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(offers.workspace_bytes));
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, offers.reduction_schemes);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, served.align_a);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, served.align_b);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, served.align_d);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, served.align_d);
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(offers.count));
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(library_, &served.operation, &served.a, &served.b, &served.d, &served.d,
                                     &preference, offers.count, results.data(), &count);
  // An epilogue with more than a bias has a replacement, so any refusal by the library is accepted.
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
      (status != CUBLAS_STATUS_SUCCESS && served.otherwise == run_unfused))
    return {};
  check_cublas(status, served.text);
  results.resize(static_cast<size_t>(count));
  std::erase_if(results, [](const auto& result) { return result.state != CUBLAS_STATUS_SUCCESS; });
  return results;
}

std::vector<Algorithms::Candidate> Algorithms::candidates(Served& served) const {
  std::vector<Candidate> found;
  for (const auto& result : ask(served, {gpu_product_workspace_bytes, reduction_schemes(served), most_candidates}))
    if (is_allowed(result.algo, result.workspaceSize, served))
      found.push_back({result.algo, std::numeric_limits<float>::infinity()});
  return found;
}

void Algorithms::start(Served& served, const LtOperands& operands, const cublasLtMatmulAlgo_t& algorithm) const {
  check_cublas(try_to_start(served, operands, algorithm), served.text);
}

// Queues the product. Queues nothing and returns an error status if the library refuses the algorithm. Throws if the
// device has failed permanently.
cublasStatus_t Algorithms::try_to_start(Served& served, const LtOperands& operands,
                                        const cublasLtMatmulAlgo_t& algorithm) const {
  const float alpha = 1;
  const float beta = operands.accumulate ? 1.0F : 0.0F;
  const cublasStatus_t status = cublasLtMatmul(
      library_, &served.operation, &alpha, operands.a, &served.a, operands.b, &served.b, &beta, operands.d, &served.d,
      operands.d, &served.d, &algorithm, operands.workspace, static_cast<size_t>(operands.workspace_bytes), stream_);
  if (status != CUBLAS_STATUS_SUCCESS) {
    cudaGetLastError();  // clears the error, which the next kernel launch would report otherwise
    if (const cudaError_t stays = cudaGetLastError(); stays != cudaSuccess) check_cuda(stays, served.text);
  }
  return status;
}

}  // namespace gptrain::cuda
