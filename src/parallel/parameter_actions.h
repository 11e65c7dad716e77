// Actions of a schedule that move parameters: gathers of weights, sums of gradients, updates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "model/layer_call.h"
#include "parallel/executor_resources.h"
#include "parallel/parameter_exchange.h"
#include "parallel/parameters.h"
#include "parallel/program.h"
#include "parallel/update_rule.h"
#include "schedule/schedule.h"

namespace gptrain::inline parallel {

// Parameters that the ops of an action read.
struct ActionParameters {
  UnitParameters own;          // parameters of the action's unit
  UnitParameters head_matrix;  // parameters of the unit with the matrix of the head
  UnitParameters experts;      // parameters of the unit's experts, if they are a unit of their own
};

// Plays these actions of one program. Used by the thread that calls the backend.
class ParameterActions {
 public:
  // Borrows all arguments. `update` may be null if the schedule has no norm and no updates.
  ParameterActions(const Program& program, const ParameterStore& parameters, const ExecutorResources& resources,
                   UpdateRule* update);

  // Call before the first action of each pass over the schedule.
  void begin();
  // Makes a unit's weights and memory of gradients ready for the ops of the action: waits for updates of the unit, and
  // fetches the sum of earlier micro-batches that the ops add to.
  void prepare(const Action& action);
  ActionParameters parameters_of(const Action& action) const;
  // Whether the action's ops add to the gradients that they find.
  bool accumulates(const Action& action) const;
  // Plays an action, or part of one. THROWS std::logic_error if it is no action of this kind.
  void play(const Action& action);

 private:
  // A unit of parameters that an action moves, and its memory in the action's operands.
  struct Part {
    int64_t unit;
    std::byte *weights, *whole_gradients, *narrow_gradients;
  };
  std::byte* at(const Action& action, Operand operand) const;
  UnitParameters whole(const Part& part) const {
    return parameters_.whole(part.unit, part.weights, part.whole_gradients);
  }
  // Returns the part of the action's unit.
  Part own_part(const Action& action) const;
  // Returns the part of the experts behind a block's part, if they are a unit of their own.
  std::optional<Part> experts_behind(Part part) const;
  // Calls body(part) for both.
  template <typename Body>
  void for_each_part(const Action& action, const Body& body) const;
  // Returns the unit with the matrix of the head.
  int64_t matrix_unit() const;
  ParameterExchange::Gradients gradients_of(const Part& part) const {
    return {whole(part).gradients, part.narrow_gradients};
  }
  void await_updates(const Action& action);
  void load_sum(const Action& action);
  void gather(const Action& action);
  // Begins the sums of an action, or waits for them.
  void sum(const Action& action);
  void await_gradients(const Part& part, int32_t micro_batch);
  void keep_gradients(const Part& part, int32_t micro_batch);
  void begin_sum(const Part& part);
  void sum_tied();

  const Program& program_;
  const ParameterStore& parameters_;
  const ExecutorResources resources_;
  ParameterExchange exchange_;
  UpdateRule* update_;
  std::vector<int32_t> gathered_units_;  // in the order of the program's gathers
};

}  // namespace gptrain::parallel
