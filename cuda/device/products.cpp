// Products by cuBLASLt.
//
// cuBLASLt computes D [m, n] = op(A) [m, k] op(B) [k, n] (+ D) on matrices that lie in memory by columns: element (i,
// j) of a matrix of leading dimension ld is at i + j ld. Ours lie by rows: element (i, j) is at i stride + j. So our
// [r, c] matrix of stride s is, to cuBLASLt, its transpose: a [c, r] matrix with ld = s. To get c = a b it computes
// D = c^T = b^T a^T: A is our second factor, B our first. A factor that we store as it is multiplied is, by columns,
// the transpose that D needs (N); one that we store transposed still has to be turned (T). In the letters of ops.h:
//
//   op                     ours           D = op(A) op(B)        m, n, k      A (as stored)     B (as stored)     ldd
//   LinearForward          y = x w^T      y^T  = (w^T)^T x^T     out, N, in   w  [in, out] T    x  [in, N]   N    y
//   LinearBackwardInput    dx = dy w      dx^T = w^T dy^T        in, N, out   w  [in, out] N    dy [out, N]  N    dx
//   LinearBackwardWeight   dw = dy^T x    dw^T = x^T (dy^T)^T    in, out, N   x  [in, N]   N    dy [out, N]  T    dw
//
// where "as stored" is what the memory is by columns (ld: the operand's stride), and T or N the operation on it. The
// bias has one element for each row of D: [out], which is what CUBLASLT_EPILOGUE_BIAS adds. It takes the bias in D's
// dtype, and may pick a kernel that reads 16 bytes of it at a time, whatever its alignment: it is given a copy where
// either does not hold. CUBLAS_COMPUTE_32F multiplies f32 in f32, never in TF32, and 16-bit types with f32 sums.
#include "products.h"

#include <algorithm>
#include <array>
#include <compare>
#include <cstdlib>
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <fmt/format.h>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "algorithm_record.h"
#include "base/dtype.h"
#include "device/cublas.h"
#include "device/epilogues.h"
#include "device/status.h"
#include "kernels/elements.h"
#include "ops/check.h"
#include "ops/gpu_scratch.h"

namespace gptrain {
namespace {

// In a record, the algorithm of a product that cuBLASLt does not take.
constexpr std::string_view own_kernel = "own kernel";
// Of a product with more than a bias in its epilogue, where the product alone and own kernels take its place.
constexpr std::string_view apart = "apart";

// What an algorithm is chosen for. Alignments are in bytes, of the addresses; strides speak for themselves.
struct ProductKey {
  int64_t m, n, k;
  int64_t lda, ldb, ldd;
  uint32_t align_a, align_b, align_d;
  bool transpose_a, transpose_b;
  DType operands, result;
  Epilogue epilogue;
  int64_t ld_aux;  // of the pre-activation; 0: there is none
  auto operator<=>(const ProductKey&) const = default;

  std::string text() const {
    return fmt::format("{}{} m={} n={} k={} ld={},{},{} align={},{},{} {} to {}{}{}", transpose_a ? 'T' : 'N',
                       transpose_b ? 'T' : 'N', m, n, k, lda, ldb, ldd, align_a, align_b, align_d, dtype_name(operands),
                       dtype_name(result), name_of(epilogue).text, ld_aux > 0 ? fmt::format(" ld={}", ld_aux) : "");
  }
};

ProductKey key_of(const Call& call) {
  const Product& product = call.product;
  return {.m = product.c.cols,
          .n = product.c.rows,
          .k = product.depth(),
          .lda = leading_dimension(product.b),
          .ldb = leading_dimension(product.a),
          .ldd = leading_dimension(product.c),
          .align_a = alignment_of(product.b.data),
          .align_b = alignment_of(product.a.data),
          .align_d = alignment_of(product.c.data),
          .transpose_a = product.b_transposed,
          .transpose_b = product.a_transposed,
          .operands = product.a.dtype,
          .result = product.c.dtype,
          .epilogue = call.epilogue,
          .ld_aux = call.pre_activation.given() ? leading_dimension(call.pre_activation) : 0};
}

void check_cublas(cublasStatus_t status, std::string_view what) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw Error(ExitCode::device, "{}: cuBLASLt error {} ({})", what, cublasLtGetStatusString(status),
                cublasLtGetStatusName(status));
  }
}

void check_cublas(cublasStatus_t status, const Call& call) {
  if (status != CUBLAS_STATUS_SUCCESS) check_cublas(status, call.text());
}

// The library's serialized form, word by word.
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

class Event {
 public:
  Event() { check_cuda(cudaEventCreate(&event_), "making an event"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(Stream stream) const { check_cuda(cudaEventRecord(event_, stream), "recording an event"); }
  // Waits for this one.
  float milliseconds_since(const Event& before) const {
    float milliseconds = 0;
    check_cuda(cudaEventSynchronize(event_), "timing an algorithm");
    check_cuda(cudaEventElapsedTime(&milliseconds, before.event_, event_), "timing an algorithm");
    return milliseconds;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// What serves a product: the library's descriptors of it, and the algorithm once there is one.
struct Served {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, d;
  int64_t depth = 0;
  std::string name;  // in records
  bool known = false;
  std::optional<cublasLtMatmulAlgo_t> algorithm;  // known, and none: the own kernel, or apart
};

class CublasProducts final : public Products {
 public:
  explicit CublasProducts(Stream stream);
  ~CublasProducts() override { cublasLtDestroy(library_); }

  void run(const LinearForward& op, std::byte* scratch, int64_t bytes) override { run_op(op, scratch, bytes); }
  void run(const LinearBackwardInput& op, std::byte* scratch, int64_t bytes) override { run_op(op, scratch, bytes); }
  void run(const LinearBackwardWeight& op, std::byte* scratch, int64_t bytes) override { run_op(op, scratch, bytes); }
  void choose(const LinearForward& op, std::byte* scratch, int64_t bytes) override { choose_for(op, scratch, bytes); }
  void choose(const LinearBackwardInput& op, std::byte* scratch, int64_t bytes) override {
    choose_for(op, scratch, bytes);
  }
  void choose(const LinearBackwardWeight& op, std::byte* scratch, int64_t bytes) override {
    choose_for(op, scratch, bytes);
  }

  std::string algorithms() const override { return record_.text(); }
  void use_algorithms(const std::string& record) override;
  std::string take_warnings() override { return std::exchange(warnings_, ""); }

 private:
  struct Candidate {
    cublasLtMatmulAlgo_t algorithm;
    float milliseconds;
  };

  template <typename Op>
  Call call_of(const Op& op, std::byte* scratch, int64_t scratch_bytes);
  template <typename Op>
  void run_op(const Op& op, std::byte* scratch, int64_t scratch_bytes);
  template <typename Op>
  void run_product(const Op& op, std::byte* scratch, int64_t scratch_bytes);
  bool run_call(const Call& call);
  template <typename Op>
  void choose_for(const Op& op, std::byte* scratch, int64_t scratch_bytes);
  template <typename Op>
  void choose_product(const Op& op, std::byte* scratch, int64_t scratch_bytes);
  template <typename Op>
  bool is_faster_apart(const Op& op, const Call& fused, Served& served, const Candidate& candidate, std::byte* scratch,
                       int64_t scratch_bytes);
  std::optional<Candidate> fastest(const Call& call, Served& served) const;
  void settle_timed(const Call& call, Served& served, const std::optional<cublasLtMatmulAlgo_t>& algorithm);

  Served& served(const Call& call);
  void describe(const ProductKey& key, const Call& call, Served& served) const;
  void look_up(const Call& call, Served& served);
  bool fits(Served& served, const cublasLtMatmulAlgo_t& algorithm) const;
  std::vector<Candidate> candidates(const Call& call, Served& served) const;
  cublasStatus_t start(const Call& call, Served& served, const cublasLtMatmulAlgo_t& algorithm) const;
  template <typename Body>
  float milliseconds(const Body& body) const;
  void settle(const Call& call, Served& served, const std::optional<cublasLtMatmulAlgo_t>& algorithm);
  void warn(const std::string& line) {
    if (!line.empty()) warnings_ += line + '\n';
  }

  Stream stream_;
  cublasLtHandle_t library_ = nullptr;
  AlgorithmRecord record_;  // of all that was run or chosen here, or taken over
  AlgorithmRecord timed_;   // by this run and earlier ones on such a device
  std::filesystem::path cache_file_;
  std::map<ProductKey, Served> served_;
  std::string warnings_;
};

AlgorithmRecord empty_record() {
  int device = 0;
  check_cuda(cudaGetDevice(&device), "asking for the device");
  cudaDeviceProp properties;
  check_cuda(cudaGetDeviceProperties(&properties, device), "asking what the device is");
  // Which algorithm is fast depends on the number of multiprocessors, which differs between devices of a name.
  return {fmt::format("{}, {} multiprocessors", properties.name, properties.multiProcessorCount),
          fmt::format("cuBLASLt {}", cublasLtGetVersion())};
}

CublasProducts::CublasProducts(Stream stream)
    : stream_(stream), record_(empty_record()), timed_(record_), cache_file_(timed_.cache_file()) {
  if (!cache_file_.empty()) warn(timed_.read(cache_file_));
  check_cublas(cublasLtCreate(&library_), "starting the library");
}

template <typename Op>
Call CublasProducts::call_of(const Op& op, std::byte* scratch, int64_t scratch_bytes) {
  require_scratch(Op::name, gpu_scratch_bytes(op), scratch_bytes);
  if (reinterpret_cast<uintptr_t>(scratch) % workspace_alignment != 0)
    throw std::logic_error(fmt::format("{}: the scratch memory is not aligned to 256 bytes", Op::name));
  Call call{.op = Op::name, .product = product_of(op), .workspace = scratch};
  const Matrix& bias = call.product.bias;
  if (!bias.given()) return call;
  call.epilogue = Epilogue::bias;
  call.bias = bias.data;
  if (bias.dtype == call.product.c.dtype && alignment_of(bias.data) == most_alignment) return call;
  const Matrix copy(scratch + gpu_product_workspace_bytes, call.product.c.dtype, 1, bias.cols);
  cuda_run(Cast{bias, copy}, stream_);
  call.bias = copy.data;
  return call;
}

template <typename Op>
void CublasProducts::run_op(const Op& op, std::byte* scratch, int64_t scratch_bytes) {
  if (!has_more_than_product(op)) return run_product(op, scratch, scratch_bytes);
  if (may_fuse(op)) {
    Call call = call_of(op, scratch, scratch_bytes);
    fuse(op, scratch, call);
    if (run_call(call)) return finish(op, call, stream_);
  }
  run_product(product_alone(op), scratch, scratch_bytes);
  run_rest(op, stream_, scratch);
}

template <typename Op>
void CublasProducts::run_product(const Op& op, std::byte* scratch, int64_t scratch_bytes) {
  const Call call = call_of(op, scratch, scratch_bytes);
  if (!run_call(call)) cuda_run(call.product, stream_);
}

// False: the library does not serve it. Without a choice, its own first one that starts.
bool CublasProducts::run_call(const Call& call) {
  Served& served = this->served(call);
  if (served.known) {
    if (served.algorithm) check_cublas(start(call, served, *served.algorithm), call);
    return served.algorithm.has_value();
  }
  for (const Candidate& candidate : candidates(call, served)) {
    if (start(call, served, candidate.algorithm) != CUBLAS_STATUS_SUCCESS) continue;
    settle(call, served, candidate.algorithm);
    return true;
  }
  settle(call, served, std::nullopt);
  return false;
}

// What is timed is timed several times by turns, so that what slows the device down for a while slows all.
constexpr int timing_rounds = 3;
// What is within 2% of what the library thinks better loses: what is measured differs by as much.
constexpr float clearly = 0.98F;

template <typename Op>
void CublasProducts::choose_for(const Op& op, std::byte* scratch, int64_t scratch_bytes) {
  if (!has_more_than_product(op)) return choose_product(op, scratch, scratch_bytes);
  const Op timed = for_timing(op, scratch);
  if (!may_fuse(timed)) return choose_product(product_alone(timed), scratch, scratch_bytes);
  // The key is that of the op itself: neither depends on where the bias' gradient goes.
  Call call = call_of(timed, scratch, scratch_bytes);
  fuse(timed, scratch, call);
  Served& served = this->served(call);
  if (served.known && served.algorithm) return;
  choose_product(product_alone(timed), scratch, scratch_bytes);
  if (served.known) return;
  const std::optional<Candidate> best = fastest(call, served);
  if (!best) return settle(call, served, std::nullopt);
  const bool is_apart = is_faster_apart(timed, call, served, *best, scratch, scratch_bytes);
  settle_timed(call, served, is_apart ? std::nullopt : std::optional(best->algorithm));
}

template <typename Op>
bool CublasProducts::is_faster_apart(const Op& op, const Call& fused, Served& served, const Candidate& candidate,
                                     std::byte* scratch, int64_t scratch_bytes) {
  float together_milliseconds = std::numeric_limits<float>::infinity();
  float apart_milliseconds = together_milliseconds;
  for (int round = 0; round < timing_rounds; ++round) {
    together_milliseconds = std::min(together_milliseconds, milliseconds([&] {
                                       check_cublas(start(fused, served, candidate.algorithm), fused);
                                       finish(op, fused, stream_);
                                     }));
    apart_milliseconds = std::min(apart_milliseconds, milliseconds([&] {
                                    run_product(product_alone(op), scratch, scratch_bytes);
                                    run_rest(op, stream_, scratch);
                                  }));
  }
  return apart_milliseconds < clearly * together_milliseconds;
}

template <typename Op>
void CublasProducts::choose_product(const Op& op, std::byte* scratch, int64_t scratch_bytes) {
  const Call call = call_of(op, scratch, scratch_bytes);
  Served& served = this->served(call);
  if (served.known) return;
  const std::optional<Candidate> best = fastest(call, served);
  if (!best) return settle(call, served, std::nullopt);  // not kept on disk: the next run asks again
  settle_timed(call, served, best->algorithm);
}

// None where the library has none that starts.
std::optional<CublasProducts::Candidate> CublasProducts::fastest(const Call& call, Served& served) const {
  std::vector<Candidate> found = candidates(call, served);
  std::erase_if(found, [&](const Candidate& candidate) {
    return start(call, served, candidate.algorithm) != CUBLAS_STATUS_SUCCESS;
  });
  for (int round = 0; round < timing_rounds; ++round) {
    for (Candidate& candidate : found) {
      const auto run = [&] { check_cublas(start(call, served, candidate.algorithm), call); };
      candidate.milliseconds = std::min(candidate.milliseconds, milliseconds(run));
    }
  }
  std::optional<Candidate> best;
  for (const Candidate& candidate : found)
    if (!best || candidate.milliseconds < clearly * best->milliseconds) best = candidate;
  return best;
}

void CublasProducts::settle_timed(const Call& call, Served& served,
                                  const std::optional<cublasLtMatmulAlgo_t>& algorithm) {
  settle(call, served, algorithm);
  timed_.set(served.name, *record_.find(served.name));
  if (!cache_file_.empty()) warn(timed_.write(cache_file_));
}

void CublasProducts::use_algorithms(const std::string& record) {
  warn(record_.take(record));
  served_.clear();
}

Served& CublasProducts::served(const Call& call) {
  const ProductKey key = key_of(call);
  const auto [place, is_new] = served_.try_emplace(key);
  Served& served = place->second;
  if (is_new) describe(key, call, served);
  const auto point = [&](cublasLtMatmulDescAttributes_t attribute, const void* to) {
    check_cublas(cublasLtMatmulDescSetAttribute(&served.operation, attribute, &to, sizeof to), call);
  };
  if (call.bias != nullptr) point(CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.bias);
  if (call.pre_activation.given()) point(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, call.pre_activation.data);
  if (is_new) look_up(call, served);  // which asks the library, and that looks at the pointers' alignment
  return served;
}

void CublasProducts::describe(const ProductKey& key, const Call& call, Served& served) const {
  const auto check = [&](cublasStatus_t status) { check_cublas(status, call); };
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    check(cublasLtMatmulDescSetAttribute(&served.operation, attribute, &value, sizeof value));
  };
  const auto layout = [&](cublasLtMatrixLayoutOpaque_t& of, DType dtype, int64_t rows, int64_t cols, int64_t ld) {
    check(
        cublasLtMatrixLayoutInit(&of, cuda_type(dtype), static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), ld));
  };
  served.depth = key.k;
  check(cublasLtMatmulDescInit(&served.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t plain = CUBLAS_OP_N, transposed = CUBLAS_OP_T;
  set(CUBLASLT_MATMUL_DESC_TRANSA, key.transpose_a ? transposed : plain);
  set(CUBLASLT_MATMUL_DESC_TRANSB, key.transpose_b ? transposed : plain);
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, name_of(key.epilogue).library);
  if (key.ld_aux > 0) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.ld_aux);
  // Layouts are of the memory, before its operation.
  layout(served.a, key.operands, key.transpose_a ? key.k : key.m, key.transpose_a ? key.m : key.k, key.lda);
  layout(served.b, key.operands, key.transpose_b ? key.n : key.k, key.transpose_b ? key.k : key.n, key.ldb);
  layout(served.d, key.result, key.m, key.n, key.ldd);
  served.name = key.text();
}

// Takes the algorithm from the records, where they have one that this device still takes.
void CublasProducts::look_up(const Call& call, Served& served) {
  const std::string* recorded = record_.find(served.name);
  if (recorded == nullptr) recorded = timed_.find(served.name);
  if (recorded == nullptr) return;
  if (*recorded == own_kernel || *recorded == apart) return settle(call, served, std::nullopt);
  const auto algorithm = parse_algorithm(*recorded);
  if (algorithm && fits(served, *algorithm)) return settle(call, served, algorithm);
  warn(fmt::format("{}: the recorded algorithm of {} does not run here; another one is chosen", call.text(),
                   served.name));
}

// Within the planned workspace, and sums of parts, if any, in f32 by a step of their own.
bool CublasProducts::fits(Served& served, const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(library_, &served.operation, &served.a, &served.b, &served.d,
                                                        &served.d, &algorithm, &result);
  if (status != CUBLAS_STATUS_SUCCESS || static_cast<int64_t>(result.workspaceSize) > gpu_product_workspace_bytes)
    return false;
  if (!sums_are_whole(algorithm, served.depth)) return false;
  uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
  size_t written = 0;
  const cublasStatus_t has_scheme = cublasLtMatmulAlgoConfigGetAttribute(
      &algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction, sizeof reduction, &written);
  return has_scheme != CUBLAS_STATUS_SUCCESS || reduction == CUBLASLT_REDUCTION_SCHEME_NONE ||
         reduction == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

// Those that the library thinks fastest, best first.
std::vector<CublasProducts::Candidate> CublasProducts::candidates(const Call& call, Served& served) const {
  const auto check = [&](cublasStatus_t status) { check_cublas(status, call); };
  cublasLtMatmulPreferenceOpaque_t preference;
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value));
  };
  check(cublasLtMatmulPreferenceInit(&preference));
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(gpu_product_workspace_bytes));
  // Unsplit sums are allowed with any mask.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  const ProductKey key = key_of(call);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.align_a);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.align_b);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.align_d);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.align_d);
  std::array<cublasLtMatmulHeuristicResult_t, most_candidates> results{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(library_, &served.operation, &served.a, &served.b, &served.d, &served.d,
                                     &preference, most_candidates, results.data(), &count);
  // What is more than a bias has a way without the library, whatever that says of it.
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
      (status != CUBLAS_STATUS_SUCCESS && is_more_than_bias(call.epilogue)))
    return {};
  check(status);
  std::vector<Candidate> found;
  for (int i = 0; i < count; ++i) {
    const auto& result = results[static_cast<size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS && fits(served, result.algo)) found.push_back({result.algo, 1e30F});
  }
  return found;
}

// Queues the product, or nothing where the library does not take it with this algorithm, for whatever reason. Throws
// when the device has failed for good.
cublasStatus_t CublasProducts::start(const Call& call, Served& served, const cublasLtMatmulAlgo_t& algorithm) const {
  const float alpha = 1;
  const float beta = call.product.accumulate ? 1.0F : 0.0F;
  void* const d = call.product.c.data;
  const cublasStatus_t status = cublasLtMatmul(
      library_, &served.operation, &alpha, call.product.b.data, &served.a, call.product.a.data, &served.b, &beta, d,
      &served.d, d, &served.d, &algorithm, call.workspace, static_cast<size_t>(gpu_product_workspace_bytes), stream_);
  if (status != CUBLAS_STATUS_SUCCESS) {
    cudaGetLastError();  // else the next kernel would be blamed
    if (const cudaError_t stays = cudaGetLastError(); stays != cudaSuccess) check_cuda(stays, call.text());
  }
  return status;
}

// Of several runs, one after another.
template <typename Body>
float CublasProducts::milliseconds(const Body& body) const {
  constexpr int runs = 4;
  const Event begin, end;
  begin.record(stream_);
  for (int i = 0; i < runs; ++i) body();
  end.record(stream_);
  return end.milliseconds_since(begin);
}

// None: the own kernel, or apart.
void CublasProducts::settle(const Call& call, Served& served, const std::optional<cublasLtMatmulAlgo_t>& algorithm) {
  served.known = true;
  served.algorithm = algorithm;
  const bool more = is_more_than_bias(call.epilogue);
  record_.set(served.name, algorithm ? algorithm_text(*algorithm) : std::string(more ? apart : own_kernel));
  if (!algorithm && !more) {
    warn(fmt::format("cuBLASLt has no algorithm for {} ({}): an own kernel, which is much slower, computes it",
                     call.text(), served.name));
  }
}

}  // namespace

std::unique_ptr<Products> make_products(Stream stream) { return std::make_unique<CublasProducts>(stream); }

}  // namespace gptrain
