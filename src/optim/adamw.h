// AdamW over a rank's part of the parameters, unit by unit, behind the global gradient norm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "config/run_config.h"
#include "ops/backend.h"
#include "ops/side_queue.h"
#include "parallel/executor.h"
#include "parallel/groups.h"
#include "parallel/parameters.h"

namespace gptrain {

class AdamWRule : public UpdateRule {
 public:
  // Uploads the segment tables to `tables` (device, table_bytes of them). Decay applies to the tensors that the spec
  // says decay. `copies` is null where the device's memory is the host's. Borrows everything.
  // loss_scale_window: 0 without loss scaling.
  // seed: of stochastic rounding.
  AdamWRule(const OptimizerConfig& config, int64_t loss_scale_window, uint64_t seed, const ModelSpec& spec,
            const std::vector<TensorShard>& shards, const ParameterStore& parameters, std::byte* tables,
            StepState* state, RankGroups& groups, Backend& backend, SideQueue* copies);

  // Norm partials and segment tables.
  static int64_t table_bytes(const ModelSpec& spec, const std::vector<TensorShard>& shards,
                             const ParameterStore& parameters);

  // Each element's square is summed by one rank: the one that holds its piece, and of several that hold the same shard
  // the first. So the norm's bits are the same for ZeRO 0 and 1, and for 2 and 3. Also sums the loss, and agrees on
  // stopping.
  void norm() override;
  void update(int64_t unit) override;

  // Asked as late as the ranks can still agree: whether this rank wants to stop, and from then on it does. Where the
  // host goes on while a device works, that is asked in every wait for the device, and the device looks for the answer
  // when it comes to the norm. Empty: it does not.
  void ask_for_stop(const std::function<bool()>& stop_wanted) { stop_wanted_ = stop_wanted; }
  // How many ranks want to, as the last norm found: device memory.
  const double* stops() const { return tables_.partials + num_tensors_; }
  // Whether any rank wants to, apart from a norm. Collective over the world.
  bool agree_to_stop(bool wanted);

 private:
  struct Segments {
    std::vector<SquaredNorm::Segment> norm;
    std::vector<AdamW::Segment> update;  // unit after unit, norms first
    std::vector<int64_t> first_update;   // of a unit's norms, of its other tensors; by unit, and the end
  };
  static Segments make_segments(const ModelSpec& spec, const std::vector<TensorShard>& shards,
                                const ParameterStore& parameters, uint64_t seed);
  static void add_update_segments(const ModelSpec& spec, const std::vector<TensorShard>& shards,
                                  const ParameterStore& parameters, uint64_t seed, int64_t unit, bool norms,
                                  std::vector<AdamW::Segment>& segments);
  // One op for elements [first, first + elements) of the unit's range, with segments [first_segment, end_segment).
  void run_update(const UpdateRange& range, int64_t first, int64_t elements, float* master, std::byte* weights,
                  int64_t first_segment, int64_t end_segment);
  struct Tables {
    double* partials;  // by tensor; then the number of ranks that ask to stop
    SquaredNorm::Segment* norm;
    AdamW::Segment* update;
    int64_t bytes;
  };
  void put_stop(bool wanted);
  void look_for_stop();
  static Tables tables_at(std::byte* memory, int64_t num_tensors, const Segments& segments);

  OptimizerConfig config_;
  int64_t loss_scale_window_;
  const ParameterStore& parameters_;
  int64_t num_tensors_;
  int64_t num_norm_segments_;
  std::vector<int64_t> first_update_;
  Tables tables_;
  StepState* state_;
  RankGroups& groups_;
  Backend& backend_;
  std::function<bool()> stop_wanted_;
  SideQueue* const copies_;                      // null, too, where there is nobody to agree with
  std::unique_ptr<DeviceMemory> wants_to_stop_;  // a double that the device reads: 1 once this rank wants to
};

}  // namespace gptrain
