// At the end of a step all ranks agree on the loss, on the norm of the gradients and their clipping, on whether the
// step is skipped, and on whether the run stops. This is the same for every optimizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ops/side_queue.h"
#include "optim/optimizer.h"
#include "parallel/executor.h"
#include "parallel/groups.h"

namespace gptrain {

// Adds up f64 in device memory. Collective over the world.
void sum_over_world(RankGroups& groups, const Matrix& sums);

class StepAgreement {
 public:
  // Uploads its tables to `tables`, which is device memory of table_bytes. clip_norm is 0 without clipping, and
  // loss_scale_window is 0 without loss scaling. `copies` is null where the device's memory is the host's. All
  // references and pointers are borrowed.
  StepAgreement(const UpdateContext& context, double clip_norm, int64_t loss_scale_window, std::byte* tables,
                RankGroups& groups, SideQueue* copies);

  // Bytes of the partial sums of the norm, the number of ranks that want to stop, and the segments.
  static int64_t table_bytes(const ModelSpec& spec, const std::vector<TensorShard>& shards,
                             const ParameterStore& parameters);

  // Call it after all gradients are summed. It writes the loss, the norm, the clipping factor and the decision to skip
  // into the step's state. One rank adds the square of each element: the rank that holds the element's piece, or the
  // first of several ranks that hold the same shard. So ZeRO 0 and 1 yield the same bits of the norm, and so do ZeRO 2
  // and 3. Collective over the world.
  void agree();

  // `stop_wanted` tells whether this rank wants to stop. Each step calls it as late as the ranks can still agree. After
  // it has returned true, the rank wants to stop for good. Where the host runs ahead of a device, every wait for the
  // device calls it, and the device reads the answer when it reaches the norm. An empty function never wants to stop.
  void ask_for_stop(const std::function<bool()>& stop_wanted) { stop_wanted_ = stop_wanted; }
  // `is_void` tells whether this rank has computed the step with data that do not count. It is called once a step, when
  // the rank has taken all its micro-batches; once true, it stays so. The step is then skipped on all ranks, as one that
  // is not finite, and the rank counts void_count times among those that want to stop.
  void ask_for_void(const std::function<bool()>& is_void) { is_void_ = is_void; }
  static constexpr double void_count = 4294967296.0;  // more than there are ranks
  // The number of ranks that wanted to stop at the last call of `agree`. It lies in device memory.
  const double* stops() const { return tables_.partials + num_tensors_; }
  // Whether any rank wants to stop. This is called between steps. Collective over the world.
  bool agree_to_stop(bool wanted);

 private:
  struct Tables {
    double* partials;  // by tensor; then the number of ranks that ask to stop
    SquaredNorm::Segment* segments;
    int64_t bytes;
  };
  static Tables tables_at(std::byte* memory, int64_t num_tensors, size_t num_segments);
  void put_stop(double count);
  void look_for_stop();

  UpdateContext context_;
  double clip_norm_;
  int64_t loss_scale_window_;
  int64_t num_tensors_;
  int64_t num_segments_ = 0;
  Tables tables_;
  RankGroups& groups_;
  std::function<bool()> stop_wanted_;
  std::function<bool()> is_void_;
  SideQueue* const copies_;                      // null, too, where there is nobody to agree with
  std::unique_ptr<DeviceMemory> wants_to_stop_;  // a double that the device reads: 1 once this rank wants to
};

// The end of a step as the executor plays it.
class StepUpdate final : public UpdateRule {
 public:
  // Borrows all.
  StepUpdate(StepAgreement& agreement, Optimizer& optimizer, RankGroups& groups)
      : agreement_(agreement), optimizer_(optimizer), groups_(groups) {}
  void norm() override {
    agreement_.agree();
    if (const Matrix sums = optimizer_.measure(); sums.given()) sum_over_world(groups_, sums);
  }
  void update(int64_t unit) override { optimizer_.update(unit); }

 private:
  StepAgreement& agreement_;
  Optimizer& optimizer_;
  RankGroups& groups_;
};

}  // namespace gptrain
