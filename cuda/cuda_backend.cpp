// The CUDA backend: own kernels, library products behind one seam, library attention behind another. The same code runs
// on a device and, over the seams' other halves, on the host harness.
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "fused_attention.h"
#include "kernels/attention.h"
#include "kernels/elements.h"
#include "kernels/embedding.h"
#include "kernels/loss.h"
#include "kernels/norms.h"
#include "kernels/quantize.h"
#include "kernels/query_key.h"
#include "kernels/update.h"
#include "ops/backend.h"
#include "ops/check.h"
#include "ops/footprint.h"
#include "products.h"
#include "runtime.h"

namespace gptrain {
namespace {

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(int device)
      : runtime_(make_runtime(device)),
        products_(make_products(runtime_->stream())),
        fused_attention_(make_fused_attention(runtime_->stream())) {}

  const Target& target() const override { return runtime_->target(); }
  std::unique_ptr<DeviceMemory> allocate(int64_t bytes) override { return runtime_->allocate(bytes); }
  void set_scratch(std::byte* data, int64_t bytes) override {
    scratch_ = data;
    scratch_bytes_ = bytes;
  }
  void upload(void* device, const void* host, int64_t bytes) override { runtime_->upload(device, host, bytes); }
  void download(void* host, const void* device, int64_t bytes) override { runtime_->download(host, device, bytes); }
  void synchronize() override { runtime_->synchronize(); }
  bool replay(uint64_t key) override {
    const auto found = graphs_.find(key);
    if (choosing_ || found == graphs_.end() || found->second == nullptr) return false;
    found->second->launch();
    return true;
  }
  // The first time ops run as they are: libraries make then what they keep, which a capture would not let them.
  void start_recording(uint64_t key) override {
    if (choosing_) return;
    if (graphs_.try_emplace(key, nullptr).second) return;
    captured_ = key;
    runtime_->begin_capture();
  }
  void end_recording() override {
    if (!captured_) return;
    const uint64_t key = *std::exchange(captured_, std::nullopt);
    graphs_[key] = runtime_->end_capture();
    graphs_[key]->launch();
  }
  std::string algorithms() const override { return products_->algorithms(); }
  void use_algorithms(const std::string& record) override { products_->use_algorithms(record); }
  void set_choosing(bool choosing) override { choosing_ = choosing; }
  std::string take_warnings() override { return products_->take_warnings(); }
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
  template <typename Op>
  void check_scratch(const Op& op) const {
    require_scratch(Op::name, footprint(op, target()).scratch_bytes, scratch_bytes_);
  }

  template <typename Op>
  void start(const Op& op) {
    if (choosing_) return;
    if constexpr (requires { cuda_run(op, runtime_->stream(), scratch_); }) {
      cuda_run(op, runtime_->stream(), scratch_);
    } else {
      cuda_run(op, runtime_->stream());
    }
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
    if (!choosing_ && fused_attention_->takes(op)) return fused_attention_->run(op, scratch_, scratch_bytes_);
    start<Op>(op);
  }

  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<Products> products_;
  std::unique_ptr<FusedAttention> fused_attention_;
  std::byte* scratch_ = nullptr;
  int64_t scratch_bytes_ = 0;
  bool choosing_ = false;
  std::unordered_map<uint64_t, std::unique_ptr<LaunchGraph>> graphs_;  // null: has run once
  std::optional<uint64_t> captured_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(int device) { return std::make_unique<CudaBackend>(device); }

}  // namespace gptrain
