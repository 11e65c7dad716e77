#include "schedule/parameter_traffic.h"

#include <algorithm>

namespace gptrain::inline schedule {

ParameterTraffic::ParameterTraffic(Schedule& schedule)
    : schedule_(schedule), awaited_(schedule.options.units.size(), false) {}

ParameterTraffic::Gathered* ParameterTraffic::find_gathered(int32_t unit) {
  const auto found =
      std::find_if(gathered_.begin(), gathered_.end(), [unit](const Gathered& g) { return g.unit == unit; });
  return found == gathered_.end() ? nullptr : &*found;
}

int32_t ParameterTraffic::use(int32_t unit, std::span<const int32_t> following) {
  const ParameterFlow& flow = schedule_.options.flow;
  if (flow.weights_return) {
    if (!awaited_[unit]) schedule_.actions.push_back({.kind = ActionKind::await_weights, .unit = unit});
    awaited_[unit] = true;
  }
  if (!flow.gathers_weights()) return -1;
  begin_gather(unit, unit, {});
  Gathered& gathered = *find_gathered(unit);
  if (!gathered.arrived) {
    Action action{.kind = ActionKind::await_weights, .unit = unit};
    action[Operand::weights] = gathered.buffer;
    schedule_.actions.push_back(action);
  }
  gathered.arrived = true;
  const int32_t buffer = gathered.buffer;
  for (const int32_t next : following) begin_gather(next, unit, following);
  return buffer;
}

void ParameterTraffic::begin_gather(int32_t unit, int32_t in_use, std::span<const int32_t> wanted) {
  if (find_gathered(unit) != nullptr) return;
  if (is_block(unit)) {
    const auto held =
        std::count_if(gathered_.begin(), gathered_.end(), [&](const Gathered& g) { return is_block(g.unit); });
    const auto spare = std::find_if(gathered_.begin(), gathered_.end(), [&](const Gathered& g) {
      return is_block(g.unit) && g.unit != in_use && std::find(wanted.begin(), wanted.end(), g.unit) == wanted.end();
    });
    if (held > schedule_.options.gathers_ahead) {
      if (spare == gathered_.end()) return;
      gathered_.erase(spare);
    }
  }
  const auto buffer = static_cast<int32_t>(schedule_.buffers.size());
  schedule_.buffers.push_back({.kind = BufferKind::weights, .unit = unit});
  Action action{.kind = ActionKind::gather, .unit = unit};
  action[Operand::weights] = buffer;
  schedule_.actions.push_back(action);
  gathered_.push_back({unit, buffer, false});
}

std::vector<ParameterTraffic::Claim>::iterator ParameterTraffic::find_claim(int32_t unit, int32_t micro_batch) {
  return std::find_if(claims_.begin(), claims_.end(),
                      [&](const Claim& claim) { return claim.unit == unit && claim.micro_batch == micro_batch; });
}

int32_t ParameterTraffic::claim_gradients(int32_t unit, int32_t micro_batch) {
  if (!schedule_.options.has_gradient_buckets()) return -1;
  const auto claimed = find_claim(unit, micro_batch);
  if (claimed != claims_.end()) return claimed->buffer;
  make_room_for_sum_of(unit);
  const auto buffer = static_cast<int32_t>(schedule_.buffers.size());
  schedule_.buffers.push_back({.kind = BufferKind::whole_gradients, .micro_batch = micro_batch, .unit = unit});
  claims_.push_back({unit, micro_batch, buffer});
  return buffer;
}

void ParameterTraffic::gradients_done(int32_t unit, int32_t micro_batch) {
  const ScheduleOptions& options = schedule_.options;
  const bool sums = options.flow.sums_each_pass || micro_batch + 1 == options.micro_batches;
  if (!sums && !options.has_gradient_buckets()) return;
  Action action{
      .kind = sums ? ActionKind::reduce : ActionKind::keep_gradients, .micro_batch = micro_batch, .unit = unit};
  if (sums && options.narrow_sums) {
    make_room_for_sum_of(unit);
    action[Operand::narrow_gradients] = static_cast<int32_t>(schedule_.buffers.size());
    schedule_.buffers.push_back({.kind = BufferKind::narrow_gradients, .micro_batch = micro_batch, .unit = unit});
  }
  const auto claimed = find_claim(unit, micro_batch);
  if (claimed != claims_.end()) {
    action[Operand::whole_gradients] = claimed->buffer;
    claims_.erase(claimed);
  }
  schedule_.actions.push_back(action);
  if (!sums) return;
  go_on_with_sums(sums_.size());
  sums_.push_back({.unit = unit,
                   .micro_batch = micro_batch,
                   .whole = action[Operand::whole_gradients],
                   .narrow = action[Operand::narrow_gradients],
                   .phase = 0});
  if (options.sums_alone) await(sums_.size() - 1);
}

void ParameterTraffic::await_all_gradients() {
  while (go_on_with_sums(sums_.size())) continue;
  while (!sums_.empty()) await(0);
}

bool ParameterTraffic::go_on_with_sums(size_t count) {
  bool any = false;
  for (size_t i = 0; i < count; ++i) {
    Sum& sum = sums_[i];
    if (sum.phase + 1 == schedule_.traits(sum.unit).sum_phases) continue;
    ++sum.phase;
    add(ActionKind::reduce_on, sum);
    any = true;
  }
  return any;
}

// Awaits older sums until one more may begin: of blocks at most sums_under_way, of any other unit one.
void ParameterTraffic::make_room_for_sum_of(int32_t unit) {
  const auto competes = [&](const Sum& sum) { return is_block(unit) ? is_block(sum.unit) : sum.unit == unit; };
  const int64_t most = is_block(unit) ? schedule_.options.sums_under_way - 1 : 0;
  while (std::count_if(sums_.begin(), sums_.end(), competes) > most)
    await(static_cast<size_t>(std::find_if(sums_.begin(), sums_.end(), competes) - sums_.begin()));
}

void ParameterTraffic::add(ActionKind kind, const Sum& sum) {
  const int8_t phase = kind == ActionKind::reduce_on ? sum.phase : int8_t{0};
  Action action{.kind = kind, .phase = phase, .micro_batch = sum.micro_batch, .unit = sum.unit};
  action[Operand::whole_gradients] = sum.whole;
  action[Operand::narrow_gradients] = sum.narrow;
  schedule_.actions.push_back(action);
}

void ParameterTraffic::await(size_t sum) {
  while (go_on_with_sums(sum + 1)) continue;
  add(ActionKind::await_gradients, sums_[sum]);
  sums_.erase(sums_.begin() + static_cast<std::ptrdiff_t>(sum));
}

}  // namespace gptrain::schedule
