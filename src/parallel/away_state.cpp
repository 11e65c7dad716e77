#include "parallel/away_state.h"

#include <cstring>
#include <utility>

#include "ops/op_event.h"

namespace gptrain::inline parallel {

AwayBytes away_bytes(const ParameterStore& parameters, int64_t unit) {
  const StateLayout& layout = parameters.state_layout();
  const int64_t state = layout.part_bytes(AwayPart::state, unit);
  const int64_t weights = layout.part_bytes(AwayPart::weights, unit);
  return {.read = state + (parameters.sharding().updates_weights() ? weights : 0), .written = state + weights};
}

AwayState::AwayState(const ParameterStore& parameters, RankGroups& groups, WorkingFiles* files, UpdateCopies* copies,
                     bool beside_device, std::function<void()> before_use)
    : parameters_(parameters),
      groups_(groups),
      files_(files),
      copies_(copies),
      beside_device_(beside_device),
      before_use_(std::move(before_use)) {}

// No effect if the unit's values are always at their landing place.
void AwayState::move(int64_t unit, bool writes) {
  if (!parameters_.state_layout().lands(unit)) return;
  EventLog* const log = groups_.log();
  const AwayBytes bytes = away_bytes(parameters_, unit);
  Event event = disk_event(writes, writes ? bytes.written : bytes.read);
  event.beside_ops = false;
  event.start_seconds = files_ != nullptr ? steady_seconds() : 0;
  for (const AwayPart part : {AwayPart::state, AwayPart::weights}) {
    if (files_ == nullptr) break;
    const size_t piece = stored_piece(parameters_, part, unit);
    if (writes) {
      files_->write(piece, parameters_.landing(unit, part));
    } else if (part == AwayPart::state || parameters_.sharding().updates_weights()) {
      files_->read(piece, parameters_.landing(unit, part));
    }
  }
  event.end_seconds = files_ != nullptr ? steady_seconds() : 0;
  if (log != nullptr && log->on()) log->add(std::move(event));
}

void AwayState::fetch(int64_t unit) {
  if (unit == fetched_ || !parameters_.state_layout().lands(unit)) return;
  before_use_();
  release();
  move(unit, false);
  fetched_ = unit;
}

// Copies the gradients, and weights without masters, that the unit's update reads.
void AwayState::bring(int64_t unit) {
  const int64_t bytes = beside_device_ ? passed_bytes(parameters_, unit, true) : 0;
  if (std::exchange(brought_, unit) == unit || bytes == 0) return;
  Event event = host_event(true, bytes);
  event.beside_ops = false;
  if (copies_ != nullptr) {
    event.start_seconds = steady_seconds();
    copies_->mark_sums(unit);
    copies_->bring(unit);
    copies_->await_brought(unit);
    event.end_seconds = steady_seconds();
  }
  EventLog* const log = groups_.log();
  if (log != nullptr && log->on()) log->add(std::move(event));
}

void AwayState::fetch_with_gradients(int64_t unit) {
  fetch(unit);
  bring(unit);
  if (!parameters_.state_layout().lands(unit)) return;
  const int64_t bytes = parameters_.state_layout().part_bytes(AwayPart::gradients, unit);
  if (bytes == 0 || std::exchange(has_gradients_, true)) return;
  Event event = disk_event(false, bytes);
  event.beside_ops = false;
  if (files_ != nullptr) {
    event.start_seconds = steady_seconds();
    files_->read(stored_piece(parameters_, AwayPart::gradients, unit), parameters_.landing(unit, AwayPart::gradients));
    event.end_seconds = steady_seconds();
  }
  EventLog* const log = groups_.log();
  if (log != nullptr && log->on()) log->add(std::move(event));
}

void AwayState::release() {
  has_gradients_ = false;
  brought_ = -1;
  const int64_t unit = std::exchange(fetched_, -1);
  if (std::exchange(changed_, false)) move(unit, true);
}

void AwayState::clear() {
  before_use_();
  release();
  for (const int64_t unit : parameters_.state_layout().away_units()) {
    const bool is_there = files_ != nullptr || !parameters_.state_layout().lands(unit);
    if (is_there) std::memset(parameters_.landing(unit), 0, parameters_.state_layout().range_away(unit).bytes);
    move(unit, true);
  }
}

std::shared_ptr<AwayClone> AwayState::clone(std::span<std::byte> memory) {
  before_use_();
  release();
  return std::make_shared<AwayClone>(parameters_, files_->clone(num_saved_pieces(parameters_)), memory);
}

std::byte* AwayState::fetched(const void* address) {
  const AwayValue value = parameters_.state_layout().find_away(offset_away(address));
  fetch(value.unit);
  return parameters_.landing(value.unit) + value.offset;
}

}  // namespace gptrain::parallel
