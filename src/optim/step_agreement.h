// What all ranks agree on at the end of a step, whatever the optimizer: the loss, the norm of the gradients and how they
// are clipped, whether the step is skipped, whether somebody wants to stop.
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

class StepAgreement {
 public:
  // Uploads its table to `tables` (device, table_bytes of them). clip_norm: 0 without clipping. loss_scale_window: 0
  // without loss scaling. `copies` is null where the device's memory is the host's. Borrows everything.
  StepAgreement(const UpdateContext& context, double clip_norm, int64_t loss_scale_window, std::byte* tables,
                RankGroups& groups, SideQueue* copies);

  // Norm partials, the number of ranks that want to stop, segments.
  static int64_t table_bytes(const ModelSpec& spec, const std::vector<TensorShard>& shards,
                             const ParameterStore& parameters);

  // After all gradients are summed: leaves loss, norm, clipping and the decision to skip in the step's state. Each
  // element's square is summed by one rank: the one that holds its piece, and of several that hold the same shard the
  // first. So the norm's bits are the same for ZeRO 0 and 1, and for 2 and 3. Collective over the world.
  void agree();

  // `stop_wanted` says whether this rank wants to stop. A step asks it as late as the ranks can still agree. Once it has
  // said yes, the rank goes on wanting to stop. Where the host runs ahead of a device, it is asked in every wait for the
  // device, and the device reads the answer when it comes to the norm. Empty: the rank does not want to stop.
  void ask_for_stop(const std::function<bool()>& stop_wanted) { stop_wanted_ = stop_wanted; }
  // The number of ranks that want to stop, which `agree` found last. Device memory.
  const double* stops() const { return tables_.partials + num_tensors_; }
  // Whether any rank wants to stop. Not part of a step. Collective over the world.
  bool agree_to_stop(bool wanted);

 private:
  struct Tables {
    double* partials;  // by tensor; then the number of ranks that ask to stop
    SquaredNorm::Segment* segments;
    int64_t bytes;
  };
  static Tables tables_at(std::byte* memory, int64_t num_tensors, size_t num_segments);
  void put_stop(bool wanted);
  void look_for_stop();

  UpdateContext context_;
  double clip_norm_;
  int64_t loss_scale_window_;
  int64_t num_tensors_;
  int64_t num_segments_ = 0;
  Tables tables_;
  RankGroups& groups_;
  std::function<bool()> stop_wanted_;
  SideQueue* const copies_;                      // null, too, where there is nobody to agree with
  std::unique_ptr<DeviceMemory> wants_to_stop_;  // a double that the device reads: 1 once this rank wants to
};

// The end of a step as the executor plays it.
class StepUpdate final : public UpdateRule {
 public:
  // Borrows both.
  StepUpdate(StepAgreement& agreement, Optimizer& optimizer) : agreement_(agreement), optimizer_(optimizer) {}
  void norm() override { agreement_.agree(); }
  void update(int64_t unit) override { optimizer_.update(unit); }

 private:
  StepAgreement& agreement_;
  Optimizer& optimizer_;
};

}  // namespace gptrain
