#include "schedule/pipeline/check_passes.h"

#include <fmt/format.h>

#include "schedule/pipeline/simulate.h"

namespace gptrain::inline schedule {
namespace {

class PassesChecker {
 public:
  PassesChecker(const PipelineShape& shape, const PipelineSchedule& schedule)
      : shape_(shape),
        schedule_(schedule),
        forwards_(shape.chunks(), 0),
        weight_gradients_(forwards_),
        input_gradients_(static_cast<size_t>(shape.chunks()) * static_cast<size_t>(shape.micro_batches), false) {}

  std::string run(const std::vector<std::vector<Pass>>& stages) {
    if (shape_.chunks_per_stage < schedule_.least_chunks ||
        (schedule_.most_chunks > 0 && shape_.chunks_per_stage > schedule_.most_chunks))
      return fmt::format("{} has no order for {} chunks a stage", schedule_.name, shape_.chunks_per_stage);
    if (stages.size() != static_cast<size_t>(shape_.stages))
      return fmt::format("{} lists for {} stages", stages.size(), shape_.stages);
    for (size_t stage = 0; stage < stages.size(); ++stage) {
      for (size_t index = 0; index < stages[stage].size(); ++index) {
        const Pass& pass = stages[stage][index];
        const std::string fault = step(static_cast<int32_t>(stage), pass);
        if (!fault.empty()) return fmt::format("stage {}, pass {} ({}): {}", stage, index, pass_text(pass), fault);
      }
    }
    for (int32_t c = 0; c < shape_.chunks(); ++c) {
      const std::string fault = missing(c);
      if (!fault.empty()) return fault;
    }
    return simulate_passes(shape_, schedule_, stages, {.chunks = {PassTimes()}}).stalled;
  }

 private:
  bool has_input_gradient(int32_t chunk, int32_t m) const { return input_gradients_[index_of(chunk, m)]; }
  size_t index_of(int32_t chunk, int32_t m) const {
    return static_cast<size_t>(chunk) * static_cast<size_t>(shape_.micro_batches) + static_cast<size_t>(m);
  }

  std::string step(int32_t stage, const Pass& pass) {
    if (pass.chunk < 0 || pass.chunk >= shape_.chunks() || pass.micro_batch < 0 ||
        pass.micro_batch >= shape_.micro_batches)
      return "there is no such pass";
    const int32_t home = schedule_.stage_of(shape_, pass.chunk);
    if (home != stage) return fmt::format("the chunk is on stage {}", home);
    if (pass.kind != PassKind::forward && (pass.kind == PassKind::backward) == schedule_.splits_backward)
      return schedule_.splits_backward ? "backwards are split" : "backwards are not split";
    const auto c = static_cast<size_t>(pass.chunk);
    if (pass.kind == PassKind::forward) return in_order(forwards_[c], pass);
    if (pass.kind != PassKind::backward_weight) {
      if (has_input_gradient(pass.chunk, pass.micro_batch)) return "it is there twice";
      input_gradients_[index_of(pass.chunk, pass.micro_batch)] = true;
    }
    if (pass.kind == PassKind::backward_input) return "";
    if (!has_input_gradient(pass.chunk, pass.micro_batch)) return "backward_input is not before it";
    return in_order(weight_gradients_[c], pass);
  }

  static std::string in_order(int32_t& next, const Pass& pass) {
    if (pass.micro_batch != next) return fmt::format("the next micro-batch is {}", next);
    ++next;
    return "";
  }

  // Input gradients need no check of their own, as weight gradients come after them.
  std::string missing(int32_t chunk) const {
    const auto c = static_cast<size_t>(chunk);
    if (forwards_[c] < shape_.micro_batches)
      return fmt::format("chunk {} has no forward of micro-batch {}", chunk, forwards_[c]);
    if (weight_gradients_[c] < shape_.micro_batches)
      return fmt::format("chunk {} has no weight gradients of micro-batch {}", chunk, weight_gradients_[c]);
    return "";
  }

  const PipelineShape& shape_;
  const PipelineSchedule& schedule_;
  // By chunk: number of micro-batches done.
  std::vector<int32_t> forwards_, weight_gradients_;
  std::vector<bool> input_gradients_;  // by chunk and micro-batch
};

}  // namespace

std::string check_passes(const PipelineShape& shape, const PipelineSchedule& schedule,
                         const std::vector<std::vector<Pass>>& stages) {
  return PassesChecker(shape, schedule).run(stages);
}

std::string check_passes(const PipelineShape& shape, const PipelineSchedule& schedule) {
  return check_passes(shape, schedule, schedule.passes(shape));
}

}  // namespace gptrain::schedule
