#include "parallel/parameter_actions.h"

#include <fmt/format.h>
#include <stdexcept>

#include "parallel/away_gradients.h"
#include "parallel/compressed_reducer.h"
#include "parallel/gradient_sums.h"
#include "parallel/island_average.h"
#include "parallel/weight_reads.h"

namespace gptrain::inline parallel {
namespace {

ParameterExchange::ReducerMaker reducer_maker(const ExecutorResources& resources) {
  if (resources.sums_over_islands)
    return [](const ReductionContext& context, ReplicaGroup) { return make_islands_reducer(context); };
  const GradientCompression* const compression = resources.compression;
  if (compression == nullptr) return make_reducer;
  return [compression, is_alone = resources.is_alone, right = resources.sums_right](const ReductionContext& context,
                                                                                    ReplicaGroup) {
    if (is_alone) return make_lone_reducer(context, compression->messages);
    GradientCompression of_program = *compression;
    if (right) of_program.factors = FactorSums::right;
    return gradient_sum(of_program.messages.kind).make_reducer(context, of_program);
  };
}

}  // namespace

ParameterActions::ParameterActions(const Program& program, const ParameterStore& parameters,
                                   const ExecutorResources& resources, UpdateRule* update)
    : program_(program),
      parameters_(parameters),
      resources_(resources),
      exchange_(parameters, *resources.groups, *resources.backend, resources.accumulated, reducer_maker(resources)),
      update_(update) {
  if (resources.weight_reads == nullptr) return;
  for (const Action& action : program.schedule.actions) {
    if (action.kind != ActionKind::gather) continue;
    for_each_part(action, [this](const Part& part) { gathered_units_.push_back(static_cast<int32_t>(part.unit)); });
  }
}

void ParameterActions::begin() {
  if (resources_.weight_reads != nullptr) resources_.weight_reads->begin(gathered_units_);
}

void ParameterActions::prepare(const Action& action) {
  if (!program_.schedule.options.flow.updates_delayed) await_updates(action);
  load_sum(action);
}

std::byte* ParameterActions::at(const Action& action, Operand operand) const {
  return program_.address(action, operand, resources_.arenas);
}

ParameterActions::Part ParameterActions::own_part(const Action& action) const {
  return {.unit = action.unit,
          .weights = at(action, Operand::weights),
          .whole_gradients = at(action, Operand::whole_gradients),
          .narrow_gradients = at(action, Operand::narrow_gradients)};
}

std::optional<ParameterActions::Part> ParameterActions::experts_behind(Part part) const {
  const UnitRange& own = parameters_.layout().units[part.unit];
  part.unit = parameters_.spec().units[part.unit].experts;
  if (part.unit < 0) return std::nullopt;
  const UnitBufferBytes before = unit_buffer_bytes(own, parameters_.sharding());
  if (part.weights != nullptr) part.weights += before.weights;
  if (part.whole_gradients != nullptr) part.whole_gradients += before.whole_gradients;
  if (part.narrow_gradients != nullptr) part.narrow_gradients += before.narrow_gradients;
  return part;
}

template <typename Body>
void ParameterActions::for_each_part(const Action& action, const Body& body) const {
  const Part own = own_part(action);
  body(own);
  if (const std::optional<Part> experts = experts_behind(own)) body(*experts);
}

int64_t ParameterActions::matrix_unit() const {
  return program_.schedule.options.tied_head ? 0 : program_.schedule.num_layers() - 1;
}

void ParameterActions::await_updates(const Action& action) {
  if (update_ == nullptr) return;
  for_each_part(action, [this](const Part& part) { update_->await_update(part.unit); });
  if (action.unit + 1 == program_.schedule.num_layers()) update_->await_update(matrix_unit());
}

ActionParameters ParameterActions::parameters_of(const Action& action) const {
  const Part own = own_part(action);
  Part of_matrix = own;
  of_matrix.unit = matrix_unit();
  const std::optional<Part> experts = experts_behind(own);
  return {whole(own), whole(of_matrix), experts ? whole(*experts) : UnitParameters{}};
}

bool ParameterActions::accumulates(const Action& action) const {
  // Gradients with a buffer of their own are moved out of it after every micro-batch.
  return action.micro_batch > 0 &&
         (!program_.schedule.options.has_gradient_buckets() || parameters_.sharding().buckets_hold_sums());
}

void ParameterActions::play(const Action& action) {
  switch (action.kind) {
    case ActionKind::gather:
      return gather(action);
    case ActionKind::await_weights:
      return for_each_part(action, [this](const Part& part) {
        resources_.groups->lane(LaneKind::weights).wait((*resources_.gathers)[part.unit]);
        finish_gather(parameters_, part.unit, part.weights, *resources_.backend);
      });
    case ActionKind::sum_tied:
      return sum_tied();
    case ActionKind::norm:
      if (resources_.away_gradients != nullptr) resources_.away_gradients->finish();
      return update_->norm();
    case ActionKind::update:
      return for_each_part(action, [this](const Part& part) {
        update_->update(part.unit);
        exchange_.end_step(part.unit);
      });
    case ActionKind::average:
      return for_each_part(action, [this](const Part& part) { resources_.average->average(part.unit); });
    default:
      return sum(action);
  }
}

void ParameterActions::gather(const Action& action) {
  await_updates(action);
  for_each_part(action, [this](const Part& part) {
    if (resources_.weight_reads != nullptr) resources_.weight_reads->fetch(part.unit);
    Lane::Ticket& ticket = (*resources_.gathers)[part.unit];
    ticket = begin_gather(parameters_, part.unit, part.weights, *resources_.groups, *resources_.backend);
    if (resources_.weight_reads != nullptr) resources_.weight_reads->release(part.unit, ticket);
  });
}

// Fills a bucket that the action is the first to write with the sum of earlier micro-batches, if it is away.
void ParameterActions::load_sum(const Action& action) {
  const int32_t bucket = action[Operand::whole_gradients];
  if (bucket < 0 || action.micro_batch == 0 || !parameters_.sharding().buckets_hold_sums()) return;
  const Buffer& buffer = program_.schedule.buffers[bucket];
  if (&action != &program_.schedule.actions[buffer.first]) return;
  Part part = own_part(action);
  part.unit = buffer.unit;
  resources_.away_gradients->load(part.unit, part.whole_gradients);
  if (const std::optional<Part> experts = experts_behind(part))
    resources_.away_gradients->load(experts->unit, experts->whole_gradients);
}

void ParameterActions::await_gradients(const Part& part, int32_t micro_batch) {
  const ParameterExchange::Gradients gradients = gradients_of(part);
  AwayGradients* const away = resources_.away_gradients;
  const Sharding& sharding = parameters_.sharding();
  const bool narrow = sharding.gradients != DType::f32;  // the exchange itself fills the slot
  if (away != nullptr && narrow) away->prepare(part.unit, sharding.cuts_gradients() && micro_batch > 0);
  exchange_.await_sum(part.unit, gradients, micro_batch);
  if (away == nullptr) return;
  if (!narrow) away->take(part.unit, gradients.whole, micro_batch);
  if (micro_batch + 1 == program_.schedule.options.micro_batches) update_->measure(part.unit);
  away->write(part.unit);
}

void ParameterActions::keep_gradients(const Part& part, int32_t micro_batch) {
  const ParameterExchange::Gradients gradients = gradients_of(part);
  AwayGradients* const away = resources_.away_gradients;
  if (away == nullptr) return exchange_.keep(part.unit, gradients, micro_batch);
  if (parameters_.sharding().gradients != DType::f32) {
    away->prepare(part.unit, micro_batch > 0);
    exchange_.keep(part.unit, gradients, micro_batch);
  } else {
    away->take(part.unit, gradients.whole, micro_batch);
  }
  away->write(part.unit);
}

// Begins to sum a unit's gradients over ranks. Sums of earlier micro-batches in bf16 are read first, if they are away.
void ParameterActions::begin_sum(const Part& part) {
  AwayGradients* const away = resources_.away_gradients;
  const Sharding& sharding = parameters_.sharding();
  if (away != nullptr && sharding.gradients != DType::f32 && !sharding.cuts_gradients() &&
      program_.schedule.options.micro_batches > 1)
    away->prepare(part.unit, true);
  exchange_.begin_sum(part.unit, gradients_of(part));
}

// Adds the gradients of the other stage that has the table.
void ParameterActions::sum_tied() {
  AwayGradients* const away = resources_.away_gradients;
  if (away == nullptr) return exchange_.sum_tied();
  away->read(0);
  exchange_.sum_tied();
  update_->measure(0);
  away->write(0);
}

void ParameterActions::sum(const Action& action) {
  for_each_part(action, [&](const Part& part) {
    switch (action.kind) {
      case ActionKind::reduce:
        return begin_sum(part);
      case ActionKind::reduce_on:
        return exchange_.go_on_with_sum(part.unit, gradients_of(part), action.phase);
      case ActionKind::await_gradients:
        return await_gradients(part, action.micro_batch);
      case ActionKind::keep_gradients:
        return keep_gradients(part, action.micro_batch);
      default:
        throw std::logic_error(fmt::format("nothing runs the action {}", action_name(action.kind)));
    }
  });
}

}  // namespace gptrain::parallel
