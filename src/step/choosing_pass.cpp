#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/micro_batch.h"
#include "parallel/action_observer.h"
#include "schedule/offload.h"
#include "step/arena_fill.h"
#include "step/step_parts.h"
#include "step/training_step.h"

namespace gptrain::inline step {
namespace {

// Runs the passes of units only: no collectives between data ranks, no gradient norm, no update.
class ComputeOnly final : public ActionObserver {
 public:
  bool before(const Action& action) override {
    return action.kind == ActionKind::load || action.kind == ActionKind::evaluate || is_unit_pass(action.kind);
  }
  void after(const Action&) override {}
};

// Returns micro-batches of token 0, for passes whose results are not used.
class NoTokens final : public MicroBatchSource {
 public:
  explicit NoTokens(const StepShape& shape)
      : memory_(shape.micro_batch().bytes()), view_(MicroBatch::at(memory_.data(), shape.micro_batch())) {}
  const MicroBatch& next() override { return view_; }

 private:
  std::vector<std::byte> memory_;
  MicroBatch view_;
};

}  // namespace

void TrainingStep::choose_algorithms() {
  StepParts& parts = *parts_;
  Backend& backend = parts.backend;
  if (backend.algorithms().empty()) return;
  for (const MemoryClass c : {MemoryClass::weights, MemoryClass::gathered, MemoryClass::fp8_weights,
                              MemoryClass::activations, MemoryClass::workspace}) {
    const int64_t bytes = parts.memory_of(c).bytes();
    fill_memory(backend, parts.copy_queue.get(), parts.arena(c), bytes,
                numbers_for_products(static_cast<uint32_t>(c), bytes));
  }
  ComputeOnly compute_only;
  NoTokens source(parts.model->shape());
  const auto set_resting = [&](bool resting) {  // nothing has been written to disk yet
    if (parts.weight_reads != nullptr) parts.weight_reads->set_resting(resting);
    if (parts.away_gradients != nullptr) parts.away_gradients->set_resting(resting);
  };
  set_resting(true);
  backend.set_choosing(true);
  parts.executors.back()->play(source, &compute_only);
  parts.evaluation_executor->play(source, &compute_only);
  backend.synchronize();  // before `source` is destroyed
  backend.set_choosing(false);
  set_resting(false);
}

}  // namespace gptrain::step
