#include "planner/layout_estimate.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "config/parallelism.h"
#include "fit/fixed_choices.h"
#include "parallel/make_stages.h"
#include "planner/layouts.h"

namespace gptrain::inline planner {
namespace {

constexpr auto embedding = static_cast<size_t>(UnitPart::embedding);
constexpr auto block = static_cast<size_t>(UnitPart::block);
constexpr auto head_part = static_cast<size_t>(UnitPart::head);

// Seconds of work beside traffic that slows it down and must end before the next pass begins.
double beside(double work, double traffic, double slow_down) { return std::max(work + slow_down * traffic, traffic); }

}  // namespace

LayoutEstimator::LayoutEstimator(RunConfig config, const Machine& machine, const Target& target)
    : config_(std::move(config)),
      machine_(machine),
      slow_down_(machine.device.slow_down_beside_traffic),
      device_bytes_(target.bytes_of_rank()),
      parts_(config_, machine, target),
      passes_(config_) {}

void LayoutEstimator::add_chunk(const RunLayout& layout, const LayoutChunks& lies, size_t chunk,
                                const FreedLayers& freed, StepCosts& costs) {
  const auto of_kind = [&](RecomputeKind recompute, size_t kind) -> const MicroBatchCosts& {
    return parts_.micro_batch(layout, recompute, costs.splits, kind);
  };
  const MicroBatchCosts& plain = of_kind(layout.plain_kind(), 0);
  const auto stage = static_cast<size_t>(lies.stages.stage_of_chunk(static_cast<int32_t>(chunk)));
  const UpdateCosts& update = parts_.update(layout, stage);
  PassCost sum;
  double gradients = 0, sum_ops = 0;
  const auto add = [&](const PassCost& cost, const UpdateCost& of_update, auto times) {
    const auto count = static_cast<double>(times);
    sum.add(cost, count);
    gradients += count * of_update.sum;
    sum_ops += count * (cuts_gradients(layout.zero) ? of_update.sum_ops : of_update.keep);
  };
  double copies = static_cast<double>(freed.copied) * plain.copy_seconds;
  const std::vector<double> recomputed = recomputed_of_kinds(layout, lies, chunk, parts_.kinds(), freed.recomputed);
  for (size_t kind = 0; kind < recomputed.size(); ++kind) {
    const auto layers = static_cast<double>(lies.of_kinds[chunk][kind]);
    if (layers == 0) continue;
    if (layout.mixes_recomputation())
      add(of_kind(RecomputeKind::block, kind).passes[block], update.blocks[kind], recomputed[kind]);
    add(of_kind(layout.plain_kind(), kind).passes[block], update.blocks[kind],
        layout.mixes_recomputation() ? layers - recomputed[kind] : layers);
  }
  if (layout.mixes_recomputation())
    copies += static_cast<double>(freed.copied_inputs) * of_kind(RecomputeKind::block, 0).copy_seconds;
  if (chunk == 0) add(plain.passes[embedding], update.embedding, 1);
  if (chunk + 1 == lies.layers.size()) add(plain.passes[head_part], update.head, 1);
  const auto [receives_input, receives_gradient] = lies.receives(chunk);
  const double input = receives_input ? costs.message.gather : 0;
  const double gradient = receives_gradient ? costs.message.gather : 0;
  sum.forward += input;
  sum.backward_input += gradient;
  sum.backward += gradient;
  sum.exposed_tensor += input + gradient;
  if (!cuts_gradients(layout.zero)) gradients = 0;
  const auto of_blocks = [&](double UpdateCost::*cost) {
    return update.mean_of_blocks(parts_.kinds().by_parameters(lies.of_kinds[chunk]),
                                 [&](const UpdateCost& of_block) { return of_block.*cost; });
  };
  double before_forward = 0, before_backward = 0;  // seconds of gathers beside the pass
  double later = 0;                                // seconds of gradient sums that run beside the next pass
  if (cuts_gradients(layout.zero)) {
    const StagePasses& passes = passes_.of_stages(layout, lies)[stage];
    const size_t index = lies.index_in_stage(stage, static_cast<int32_t>(chunk));
    // Sums of up to two blocks are not finished when a pass ends: they continue beside the next pass.
    later = passes.before_others[index] * std::min({gradients, 2 * of_blocks(&UpdateCost::sum), sum.forward});
    if (cuts_weights(layout.zero)) {
      before_forward = passes.forward_gathers[index] * of_blocks(&UpdateCost::gather);
      before_backward = passes.backward_gathers[index] * of_blocks(&UpdateCost::gather);
      const double codes = of_blocks(&UpdateCost::codes);
      sum.forward += passes.forward_gathers[index] * codes;
      sum.backward_input += passes.backward_gathers[index] * codes;
      sum.backward += passes.backward_gathers[index] * codes;
    }
  }
  // A link carries one message at a time.
  const double transfer = costs.message.transfer;
  PassTimes times;
  times.forward = std::max(beside(sum.forward, std::max(before_forward, later), slow_down_), transfer);
  times.backward_input = std::max(beside(sum.backward_input, before_backward, slow_down_), transfer);
  times.backward_weight = beside(sum.backward_weight + sum_ops, gradients - later, slow_down_);
  times.backward =
      std::max(beside(sum.backward + sum_ops, std::max(before_backward, gradients - later), slow_down_), transfer);
  const double spent = times.forward + (costs.splits ? times.backward_input + times.backward_weight : times.backward);
  const double work = sum.forward + sum_ops + (costs.splits ? sum.backward_input + sum.backward_weight : sum.backward);
  // Each direction to the host carries one copy at a time.
  double exposed_copies = 0;
  const auto beside_copies = [&](double& pass, bool counts) {
    if (counts) exposed_copies += std::max(copies - pass, 0.0);
    pass = std::max(pass, copies);
  };
  beside_copies(times.forward, true);
  beside_copies(times.backward_input, costs.splits);
  beside_copies(times.backward, !costs.splits);
  costs.exposed_copies.push_back(exposed_copies);
  costs.chunks.push_back(times);
  costs.exposed_tensor.push_back(sum.exposed_tensor);
  costs.exposed_context.push_back(sum.exposed_context);
  costs.exposed_expert.push_back(sum.exposed_expert);
  costs.exposed_traffic.push_back(spent - work);
}

double LayoutEstimator::mean_backward(const RunLayout& layout, const LayoutChunks& lies, size_t stage, bool splits) {
  const std::vector<int64_t>& counts = lies.kinds_of_stages[stage];
  const auto seconds = [&](size_t kind) {
    const PassCost& pass = parts_.micro_batch(layout, layout.plain_kind(), splits, kind).passes[block];
    return splits ? pass.backward_weight : pass.backward;
  };
  const auto layers = static_cast<double>(lies.layers_of(stage));
  double mean = 0;
  for (size_t kind = 0; kind < counts.size(); ++kind)
    if (counts[kind] > 0) mean += seconds(kind) * (static_cast<double>(counts[kind]) / layers);
  return mean;
}

void LayoutEstimator::add_stage(const RunLayout& layout, const LayoutChunks& lies, size_t stage, StepCosts& costs) {
  const UpdateCosts& update = parts_.update(layout, stage);
  const bool has_embedding = lies.has_embedding(stage);
  const auto layers = static_cast<double>(lies.layers_of(stage));
  const std::vector<int64_t> kinds = parts_.kinds().by_parameters(lies.kinds_of_stages[stage]);
  const auto [first_block, last_block] = lies.ends_of(stage);
  const UpdateCost& first = has_embedding ? update.embedding : update.blocks[parts_.kinds().of(first_block)];
  const UpdateCost& last = lies.has_head(stage) ? update.head : update.blocks[parts_.kinds().of(last_block)];
  const auto over_units = [&](auto cost_of) {
    double sum = 0;
    for (size_t kind = 0; kind < kinds.size(); ++kind)
      if (kinds[kind] > 0) sum += static_cast<double>(kinds[kind]) * cost_of(update.blocks[kind]);
    if (has_embedding) sum += cost_of(update.embedding);
    if (lies.has_head(stage)) sum += cost_of(update.head);
    return sum;
  };
  // Gradients of the first unit are complete last.
  double sums = first.sum + (cuts_gradients(layout.zero) ? first.sum_ops : 0);
  if (!cuts_gradients(layout.zero)) {
    // A unit's sum begins when its gradients are complete. All sums but the last unit's run beside the rest of the
    // last pass.
    const double beside_them =
        std::max(layers - (has_embedding ? 0.0 : 1.0), 0.0) * mean_backward(layout, lies, stage, costs.splits);
    const double all = over_units([](const UpdateCost& cost) { return cost.sum; });
    sums = std::max(sums, all - beside_them) + slow_down_ * std::min(all, beside_them);
  }
  const double updates = over_units([](const UpdateCost& cost) { return cost.update; });
  double end = updates;
  if (parameter_flow(layout.zero).weights_return) {
    const double gathers = over_units([](const UpdateCost& cost) { return cost.gather; });
    end = std::max(updates + last.gather, first.update + gathers) + slow_down_ * std::min(gathers, updates);
  }
  end += over_units([](const UpdateCost& cost) { return cost.measure; });
  costs.sums.push_back(sums);
  costs.updates.push_back(end);
}

LayoutEstimator::StepCosts LayoutEstimator::costs(const RunLayout& layout) {
  const LayoutChunks& lies = passes_.chunks(layout);
  StepCosts costs;
  costs.splits = lies.stages.schedule->splits_backward;
  costs.message =
      parts_.message(layout, parts_.micro_batch(layout, layout.recomputed_kind(), costs.splits).message_bytes);
  const auto repeat_last = [](std::vector<double>& values) { values.push_back(values.back()); };
  const std::vector<size_t>& alike = parts_.first_equal_stages(layout);
  const auto first_equal_stage = [&](size_t chunk) {
    return alike[lies.stages.stage_of_chunk(static_cast<int32_t>(chunk))];
  };
  std::optional<HeldAtEnds> at_ends;
  if (layout.recompute == RecomputeKind::optimal) at_ends.emplace(held_at_ends(layout, lies));
  for (size_t chunk = 0; chunk < lies.layers.size(); ++chunk) {
    // Most chunks equal the one before, so that its costs can be repeated.
    const bool is_inner = chunk > 1 && chunk + 1 < lies.layers.size() && !layout.mixes_recomputation() &&
                          !cuts_gradients(layout.zero) && lies.of_kinds[chunk] == lies.of_kinds[chunk - 1] &&
                          first_equal_stage(chunk) == first_equal_stage(chunk - 1) &&
                          lies.receives(chunk) == lies.receives(chunk - 1);
    if (!is_inner) {
      const FreedLayers freed =
          at_ends ? optimal_layers(layout, lies, chunk, *at_ends)
                  : FreedLayers{.recomputed = recomputed_layers(layout, lies, chunk),
                                .copied = offloaded_layers(layout, lies, chunk, layout.plain_kind(), false)};
      add_chunk(layout, lies, chunk, freed, costs);
      continue;
    }
    costs.chunks.push_back(costs.chunks.back());
    repeat_last(costs.exposed_tensor);
    repeat_last(costs.exposed_context);
    repeat_last(costs.exposed_expert);
    repeat_last(costs.exposed_traffic);
    repeat_last(costs.exposed_copies);
  }
  if (cuts_weights(layout.zero)) {
    // The last stage gathers the embedding, too, if the head is tied to it.
    const UpdateCosts& last = parts_.update(layout, lies.of_stage.size() - 1);
    costs.first_gathers = parts_.update(layout, 0).embedding.gather + last.head.gather;
    if (config_.model.tied_head && layout.pipeline > 1) costs.first_gathers += last.embedding.gather;
  }
  for (size_t stage = 0; stage < lies.of_stage.size(); ++stage) {
    const bool is_inner = stage > 1 && !lies.has_head(stage) && !lies.has_head(stage - 1) &&
                          lies.kinds_of_stages[stage] == lies.kinds_of_stages[stage - 1] &&
                          alike[stage] == alike[stage - 1];
    if (!is_inner) {
      add_stage(layout, lies, stage, costs);
      continue;
    }
    repeat_last(costs.sums);
    repeat_last(costs.updates);
  }
  return costs;
}

// State is read and written once in a step. Weights are read for each pass, gradients are written after each.
double LayoutEstimator::seconds_of_places(const RunLayout& layout) {
  const MemoryConfig& memory = config_.memory;
  if (!memory.keeps_state_away()) return 0;
  const PlaceRates rates = place_rates(machine_, layout.world_size());
  const bool is_cpu = machine_.device.measured && machine_.device.measured->is_cpu;
  const LayoutChunks& lies = passes_.chunks(layout);
  const auto micro_batches = static_cast<double>(layout.accumulation);
  double most = 0;
  for (size_t stage = 0; stage < lies.of_stage.size(); ++stage) {
    const auto of_part = [&](int64_t PartBytes::*part) {
      return static_cast<double>(bytes_of_stage(parts_.bytes(layout), part, lies, stage));
    };
    if (memory.fits_places()) continue;  // at least nothing
    const double state = memory.offload_optimizer_share * of_part(&PartBytes::away_state);
    const double weights = of_part(&PartBytes::away_weights), gradients = of_part(&PartBytes::away_gradients);
    if (memory.uses_disk())
      most = std::max(most, rates.disk_seconds(state + 2 * micro_batches * weights + gradients,
                                               state + weights + micro_batches * gradients));
    if (!is_cpu)
      most = std::max({most, 2 * micro_batches * weights / rates.host_link, micro_batches * gradients / rates.host_link,
                       2 * state / rates.host_memory});
  }
  return most;
}

// A stage cannot begin before a micro-batch has reached its first chunk. It then runs all its passes. After its last
// backward pass through that chunk the gradient still has to travel back to the first stage.
double LayoutEstimator::least_seconds(const RunLayout& layout) {
  const LayoutChunks& lies = passes_.chunks(layout);
  const StepCosts cost = costs(layout);
  const auto micro_batches = static_cast<double>(layout.accumulation);
  double passes = 0, with_sums = 0;
  double before = 0, after = 0;
  // In every schedule a stage's first chunk has the stage's number.
  for (size_t stage = 0; stage < lies.of_stage.size(); ++stage) {
    double busy = 0, busy_until_gradient = 0;
    if (stage > 0) {
      const PassTimes& times = cost.chunks[stage - 1];
      before += times.forward + cost.message.transfer;
      after += (cost.splits ? times.backward_input : times.backward) + cost.message.transfer;
    }
    for (const int32_t chunk : lies.of_stage[stage]) {
      const PassTimes& times = cost.chunks[chunk];
      busy += micro_batches *
              (times.forward + (cost.splits ? times.backward_input + times.backward_weight : times.backward));
      busy_until_gradient += micro_batches * (times.forward + (cost.splits ? times.backward_input : times.backward));
    }
    passes = std::max({passes, before + busy, before + busy_until_gradient + after});
    with_sums = std::max(with_sums, before + busy + cost.sums[stage]);
  }
  const double before_updates = cost.first_gathers + std::max(passes, with_sums);
  // Updates of state that is away run beside the next step.
  if (config_.memory.keeps_state_away()) return std::max(before_updates, seconds_of_places(layout));
  return before_updates + *std::max_element(cost.updates.begin(), cost.updates.end());
}

LayoutResult LayoutEstimator::estimate(const RunLayout& layout) {
  const LayoutChunks& lies = passes_.chunks(layout);
  const StepCosts cost = costs(layout);
  PipelineShape shape = lies.stages.shape;
  shape.micro_batches = static_cast<int32_t>(layout.accumulation);
  shape.recompute = backward_recomputes(layout.recompute);
  const PipelineSchedule& schedule = *lies.stages.schedule;
  const PipelineSimulation played =
      simulate_passes(shape, schedule, *passes_of(schedule, shape), {cost.chunks, cost.message.transfer});
  LayoutResult result;
  result.layout = layout;
  const auto stages = static_cast<double>(layout.pipeline);
  const auto micro_batches = static_cast<double>(layout.accumulation);
  double end = 0;
  constexpr auto tensor = static_cast<size_t>(LaneKind::tensor), gradients = static_cast<size_t>(LaneKind::gradients);
  constexpr auto weights = static_cast<size_t>(LaneKind::weights), context = static_cast<size_t>(LaneKind::context),
                 expert = static_cast<size_t>(LaneKind::expert);
  result.exposed_seconds[weights] = cost.first_gathers / stages;
  for (size_t stage = 0; stage < played.stages.size(); ++stage) {
    end = std::max(end, cost.first_gathers + played.stages[stage].passes.back().end + cost.sums[stage]);
    result.bubble_seconds += played.stages[stage].idle / stages;
    result.exposed_seconds[gradients] += cost.sums[stage] / stages;
    for (const int32_t chunk : lies.of_stage[stage]) {
      const auto index = static_cast<size_t>(chunk);
      result.exposed_seconds[tensor] += micro_batches * cost.exposed_tensor[index] / stages;
      result.exposed_seconds[context] += micro_batches * cost.exposed_context[index] / stages;
      result.exposed_seconds[expert] += micro_batches * cost.exposed_expert[index] / stages;
      result.exposed_seconds[cuts_weights(layout.zero) ? weights : gradients] +=
          micro_batches * cost.exposed_traffic[index] / stages;
      result.exposed_seconds[copy_lane] += micro_batches * cost.exposed_copies[index] / stages;
    }
  }
  result.step_seconds = config_.memory.keeps_state_away()
                            ? std::max(end, seconds_of_places(layout))
                            : end + *std::max_element(cost.updates.begin(), cost.updates.end());
  result.tokens_per_second =
      static_cast<double>(config_.batch.global * config_.model.sequence_length) / result.step_seconds;
  result.peak_bytes = least_bytes(layout, INT64_MAX).bytes;
  return result;
}

}  // namespace gptrain::planner
