#include "parallel/weight_reads.h"

#include <stdexcept>
#include <string_view>
#include <utility>

#include "ops/op_event.h"
#include "parallel/away_state.h"

namespace gptrain::inline parallel {
namespace {

constexpr std::string_view weight_wait_name = "await_weights_of_disk";

}  // namespace

WeightReads::WeightReads(const ParameterStore& parameters, RankGroups& groups, WorkingFiles* files, Backend* gpu,
                         UpdateLane& lane)
    : parameters_(parameters),
      groups_(groups),
      files_(files),
      lane_(lane),
      slots_(parameters.weight_slots().num_slots()) {
  if (gpu != nullptr) to_device_.emplace(*gpu);
}

WeightReads::~WeightReads() {
  try {
    forget();
  } catch (const std::exception&) {
    // Was reported by the call that found it.
  }
}

void WeightReads::forget() {
  if (to_device_) {
    if (!reads_.empty()) to_device_->wait_all();
  } else {
    for (const WorkingFiles::Ticket ticket : reads_) files_->wait(ticket);
  }
  reads_.clear();
  order_.clear();
  released_ = 0;
}

void WeightReads::begin(const std::vector<int32_t>& units) {
  if (is_plan()) return;
  forget();
  slots_.assign(slots_.size(), {});  // programs await their gathers
  order_ = units;
  read_ahead();
}

// Returns whether the next read would wait for nothing, and its slot is free.
bool WeightReads::can_begin() const {
  const size_t next = released_ + reads_.size();
  if (next >= order_.size()) return false;
  const Slot& slot = slots_[parameters_.weight_slots().slot(order_[next])];
  // The gather that was issued last is surely under way: a read into its slot can wait.
  const bool is_last = slot.gather != Lane::done && slot.released + 1 == released_;
  return !slot.is_taken && !is_last && lane_.weights_written(order_[next]);
}

void WeightReads::begin_next() {
  const int64_t unit = order_[released_ + reads_.size()];
  Slot& slot = slots_[parameters_.weight_slots().slot(unit)];
  groups_.lane(LaneKind::weights).wait(std::exchange(slot.gather, Lane::done));
  slot.is_taken = true;
  if (to_device_) {
    reads_.push_back(to_device_->upload(parameters_.weights_piece(unit), parameters_.landing(unit, AwayPart::weights),
                                        parameters_.state_layout().part_bytes(AwayPart::weights, unit)));
  } else {
    reads_.push_back(
        files_->begin_read(stored_piece(parameters_, AwayPart::weights, unit), parameters_.weights_piece(unit)));
  }
}

// Waits until the first of the reads is in its slot; on a GPU makes the ops wait, and itself only if the read is
// logged.
WorkingFiles::Times WeightReads::arrive(bool logs) {
  if (!to_device_) return files_->wait(reads_.front());
  const double start = steady_seconds();
  to_device_->follow(reads_.front());
  if (!logs) return {};
  to_device_->wait(reads_.front());
  return {.start = start, .end = steady_seconds()};
}

void WeightReads::read_ahead() {
  while (can_begin()) begin_next();
}

void WeightReads::fetch(int64_t unit) {
  EventLog* const log = groups_.log();
  const bool logs = log != nullptr && log->on();
  const int64_t bytes = parameters_.state_layout().part_bytes(AwayPart::weights, unit);
  Event read = disk_event(false, bytes), copy = host_event(false, bytes);
  if (!is_plan()) {
    if (released_ >= order_.size() || order_[released_] != unit)
      throw std::logic_error("weights are gathered in the order of the program");
    const double start = steady_seconds();
    if (reads_.empty()) {
      lane_.await_weights(unit);
      begin_next();
    }
    const bool waits = files_ != nullptr && !files_->is_over(reads_.front());
    const WorkingFiles::Times times = arrive(logs);
    read.start_seconds = copy.start_seconds = times.start;
    read.end_seconds = copy.end_seconds = times.end;
    if (waits && logs)
      log->add({.kind = Event::Kind::wait,
                .name = weight_wait_name,
                .start_seconds = start,
                .end_seconds = steady_seconds()});
  }
  if (logs && parameters_.state_layout().lands(unit)) log->add(std::move(read));
  if (logs && lane_.beside_device()) log->add(std::move(copy));
}

void WeightReads::release(int64_t unit, Lane::Ticket gather) {
  if (is_plan()) return;
  Slot& slot = slots_[parameters_.weight_slots().slot(unit)];
  slot = {.is_taken = false, .gather = gather, .released = released_};
  reads_.pop_front();
  ++released_;
  read_ahead();
}

}  // namespace gptrain::parallel
