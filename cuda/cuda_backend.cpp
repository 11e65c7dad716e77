// The CUDA backend: own kernels, library products behind one seam, library attention behind another. The same code runs
// on a device and, over the seams' other halves, on the host harness.
#include <fmt/format.h>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "fused_attention.h"
#include "kernels/attention.h"
#include "kernels/documents.h"
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
#include "ops/fused_attention_policy.h"
#include "ops/shape_text.h"
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
  // The first time ops run as they are: libraries make then what they keep, which a capture would not let them.
  void run_recorded(uint64_t key, const std::function<void()>& ops) override {
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
  // Null, and a warning the first time, where one of the ops cannot be captured. A fault of another kind comes again
  // when they are run.
  std::unique_ptr<LaunchGraph> capture(const std::function<void()>& ops) {
    std::string fault;
    try {
      runtime_->begin_capture();
      ops();
    } catch (const Error& error) {
      fault = error.what();
    }
    try {
      auto graph = runtime_->end_capture();
      if (fault.empty()) return graph;
    } catch (const Error& error) {
      if (fault.empty()) fault = error.what();
    }
    if (!std::exchange(warned_of_captures_, true)) {
      warn(fmt::format("some ops of the step run one by one and not as a CUDA graph, which is slower: {}", fault));
    }
    return nullptr;
  }

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
    if (op.mask.max_documents > 0) return start_documents(op);
    if (!choosing_ && fused_attention_->takes(op)) return fused_attention_->run(op, nullptr, scratch_, scratch_bytes_);
    start<Op>(op);
  }

  // Which sequences hold more documents than there is room for, is known to the device only: the own kernels run, too,
  // and compute those.
  template <typename Op>
  void start_documents(const Op& op) {
    const int64_t table_bytes = fused_attention_table_bytes(op);
    std::byte* const rest = scratch_ + table_bytes;
    const int64_t rest_bytes = scratch_bytes_ - table_bytes;
    const DocumentPieces pieces = fused_attention_->pieces(op, rest_bytes);
    if (pieces.sequences == 0) {
      warn(own_kernels_warning(op, pieces.refusal));
      return start<Op>(op);
    }
    if (choosing_) return;
    const DocumentTable table(scratch_, op.batch, pieces.sequences, op.mask.max_documents);
    list_documents(table, op, runtime_->stream());
    fused_attention_->run(op, &table, rest, rest_bytes);
    if constexpr (std::is_same_v<Op, AttentionForward>) {
      cuda_run(op, runtime_->stream(), table.overflow());
    } else {
      cuda_run(op, runtime_->stream(), rest, table.overflow());
    }
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
    std::unique_ptr<LaunchGraph> graph;  // null: the ops have run once, or cannot be captured
    bool possible = true;
  };
  std::unordered_map<uint64_t, Recording> recordings_;
  bool warned_of_captures_ = false;
  std::string warnings_;
  std::set<std::string> warned_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(int device) { return std::make_unique<CudaBackend>(device); }

}  // namespace gptrain
