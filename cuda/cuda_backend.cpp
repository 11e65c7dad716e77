// The CUDA backend: its own kernels, and two seams to libraries, for products and for attention. The same code runs on
// a device and, with the seams' host implementations, on the host harness.
#include <exception>
#include <fmt/format.h>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"
#include "fused_attention.h"
#include "kernels/attention.h"
#include "kernels/documents.h"
#include "kernels/run.h"
#include "ops/backend.h"
#include "ops/check.h"
#include "ops/footprint.h"
#include "ops/fused_attention_policy.h"
#include "ops/op_event.h"
#include "products.h"
#include "runtime.h"

namespace gptrain::inline cuda {
namespace {

bool has_fixed_bits(const AttentionForward&) { return true; }
bool has_fixed_bits(const AttentionBackward& op) { return op.fixed_bits; }

class CudaBackend final : public Backend {
 public:
  CudaBackend(int device, const std::string& algorithm_cache)
      : runtime_(make_runtime(device)),
        products_(make_products(runtime_->stream(), algorithm_cache)),
        fused_attention_(make_fused_attention(runtime_->stream())) {}

  const Target& target() const override { return runtime_->target(); }
  std::unique_ptr<DeviceMemory> allocate(int64_t bytes) override { return runtime_->allocate(bytes); }
  int64_t free_bytes() const override { return runtime_->free_bytes(); }
  void set_scratch(std::byte* data, int64_t bytes) override {
    scratch_ = data;
    scratch_bytes_ = bytes;
    recordings_.clear();  // the recorded kernels refer to the old scratch memory
  }
  void upload(void* device, const void* host, int64_t bytes) override { runtime_->upload(device, host, bytes); }
  void download(void* host, const void* device, int64_t bytes) override {
    if (!choosing_) runtime_->download(host, device, bytes);
  }
  void synchronize() override { runtime_->synchronize(); }
  // Runs the ops directly the first time, when libraries create state that a capture would forbid; captures them the
  // second time.
  void run_recorded(const RecordingKey& key, const std::function<void()>& ops) override {
    if (choosing_) return ops();
    const auto [found, first_time] = recordings_.try_emplace(key);
    Recording& recording = found->second;
    if (!first_time && recording.graph == nullptr && recording.possible) {
      recording.graph = capture(ops);
      recording.possible = recording.graph != nullptr;
    }
    if (recording.graph == nullptr) return ops();
    recording.graph->launch();
  }
  std::string algorithms() const override { return products_->algorithms(); }
  void use_algorithms(const std::string& record) override { products_->use_algorithms(record); }
  void set_choosing(bool choosing) override { choosing_ = choosing; }
  std::string take_warnings() override { return products_->take_warnings() + std::exchange(warnings_, ""); }
  std::unique_ptr<SideQueue> make_side_queue() override { return runtime_->make_side_queue(); }

#define GPTRAIN_CUDA_RUN(Op)        \
  void run(const Op& op) override { \
    check(op);                      \
    check_scratch(op);              \
    start(op);                      \
  }
  GPTRAIN_FOR_EACH_OP(GPTRAIN_CUDA_RUN)
#undef GPTRAIN_CUDA_RUN

 private:
  // Returns null, and adds a warning, if an op cannot be captured. Other exceptions are rethrown after the capture has
  // ended; an open capture would take in all later work.
  std::unique_ptr<LaunchGraph> capture(const std::function<void()>& ops) {
    std::string fault;
    std::exception_ptr other;
    try {
      runtime_->begin_capture();
      ops();
    } catch (const Error& error) {
      fault = error.what();
    } catch (...) {
      other = std::current_exception();
    }
    try {
      auto graph = runtime_->end_capture();
      if (fault.empty() && !other) return graph;
    } catch (const Error& error) {
      if (fault.empty()) fault = error.what();
    }
    if (other) std::rethrow_exception(other);
    warn(fmt::format("some ops of the step run one by one and not as a CUDA graph, which is slower: {}", fault));
    return nullptr;
  }

  template <typename Op>
  void check_scratch(const Op& op) const {
    require_scratch(Op::name, footprint(op, target()).scratch_bytes, scratch_bytes_);
  }

  template <typename Op>
  void start(const Op& op) {
    if (choosing_) return;
    cuda_run(op, runtime_->stream(), scratch_);
  }
  void start(const LinearForward& op) { start_product(op); }
  void start(const LinearBackwardInput& op) { start_product(op); }
  void start(const LinearBackwardWeight& op) { start_product(op); }
  void start(const ScaledProduct& op) { start_product(op); }
  void start(const AttentionForward& op) { start_attention(op); }
  void start(const AttentionBackward& op) { start_attention(op); }

  template <typename Op>
  void start_product(const Op& op) {
    if (choosing_) return products_->choose(op, scratch_, scratch_bytes_);
    products_->run(op, scratch_, scratch_bytes_);
  }

  template <typename Op>
  void start_attention(const Op& op) {
    const AttentionPieces pieces = pieces_of(op);
    if (pieces.sequences == 0) {
      if (!pieces.refusal.empty()) warn(own_kernels_warning(op, pieces.refusal));
      return start<Op>(op);
    }
    if (choosing_) return;
    if (!has_fixed_bits(op))
      warn("attention's gradients are added up in any order (run.deterministic = false): two runs differ by rounding");
    if (op.mask.max_documents > 0) return start_documents(op, pieces.sequences);
    fused_attention_->run(op, nullptr, scratch_);
  }

  // Does not warn for f32 and dropout, which cuDNN never serves. Warns if data.max_documents has no effect.
  template <typename Op>
  AttentionPieces pieces_of(const Op& op) {
    if (fused_attention_shape(op)) return fused_attention_->pieces(op);
    return {0, op.mask.max_documents > 0 ? fused_attention_rule : ""};
  }

  // Only the device knows which sequences hold more documents than there is room for. Our own kernels therefore run as
  // well and compute those sequences.
  template <typename Op>
  void start_documents(const Op& op, int64_t sequences) {
    std::byte* const rest = scratch_ + fused_attention_table_bytes(op);
    const DocumentTable table(scratch_, op.batch, sequences, op.mask.max_documents);
    list_documents(table, op, runtime_->stream());
    fused_attention_->run(op, &table, rest);
    cuda_run(op, runtime_->stream(), rest, table.overflow());
  }

  void warn(const std::string& warning) {
    if (warned_.insert(warning).second) warnings_ += warning + '\n';
  }

  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<Products> products_;
  std::unique_ptr<FusedAttention> fused_attention_;
  std::byte* scratch_ = nullptr;
  int64_t scratch_bytes_ = 0;
  bool choosing_ = false;
  struct Recording {
    std::unique_ptr<LaunchGraph> graph;  // null: not captured yet, or not capturable
    bool possible = true;
  };
  std::map<RecordingKey, Recording> recordings_;
  std::string warnings_;
  std::set<std::string> warned_;
};

}  // namespace

}  // namespace gptrain::cuda

namespace gptrain::inline ops {

std::unique_ptr<Backend> make_cuda_backend(int device, const std::string& algorithm_cache) {
  return std::make_unique<CudaBackend>(device, algorithm_cache);
}

}  // namespace gptrain::ops
