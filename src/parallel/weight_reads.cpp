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
                         const HostSlots& host_slots, UpdateLane& lane)
    : parameters_(parameters),
      groups_(groups),
      files_(files),
      host_slots_(host_slots),
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
  if (to_device_ && !reads_.empty()) to_device_->wait_all();
  for (const Read& read : reads_)
    if (files_ != nullptr) files_->wait(read.file);
  reads_.clear();
  order_.clear();
  released_ = 0;
}

void WeightReads::begin(const std::vector<int32_t>& units) {
  if (is_plan() || resting_) return;
  forget();
  for (Slot& slot : slots_) slot = {.copy = slot.copy};  // programs await their gathers
  order_ = units;
  read_ahead();
}

// Returns whether the next read can be asked for, and its slot is free. Files begin it once the weights are written.
bool WeightReads::can_begin() const {
  const size_t next = released_ + reads_.size();
  if (next >= order_.size()) return false;
  const Slot& slot = slots_[parameters_.weight_slots().slot(order_[next])];
  // The gather that was issued last is surely under way, and a copy from the host to its slot: a read can wait.
  const bool copies = passes_host() && slot.copy != RankQueue::done;
  const bool is_last = (slot.gather != Lane::done || copies) && slot.released + 1 == released_;
  return !slot.is_taken && !is_last && (files_ != nullptr || lane_.is_over(order_[next]));
}

void WeightReads::begin_next() {
  const int64_t unit = order_[released_ + reads_.size()];
  Slot& slot = slots_[parameters_.weight_slots().slot(unit)];
  groups_.lane(LaneKind::weights).wait(std::exchange(slot.gather, Lane::done));
  slot.is_taken = true;
  Read& read = reads_.emplace_back(Read{.unit = unit});
  if (files_ == nullptr) return begin_copy(read);
  if (to_device_) to_device_->wait(slot.copy);  // reads the memory on the host
  read.file = files_->begin_read(stored_piece(parameters_, AwayPart::weights, unit),
                                 to_device_ ? host_slots_.weights(unit) : parameters_.weights_piece(unit),
                                 {lane_.weight_write(unit)});
}

void WeightReads::begin_copy(Read& read) {
  read.copy = to_device_->upload(parameters_.weights_piece(read.unit), host_slots_.weights(read.unit),
                                 parameters_.state_layout().part_bytes(AwayPart::weights, read.unit));
  slots_[parameters_.weight_slots().slot(read.unit)].copy = read.copy;
}

// Begins to copy weights that have come to the host, with `may_wait` also those of the first read, once they come.
void WeightReads::copy_on(bool may_wait) {
  if (!passes_host()) return;
  for (Read& read : reads_) {
    if (read.copy != RankQueue::done) continue;
    const bool waits = may_wait && &read == &reads_.front();
    if (!waits && !files_->is_over(read.file)) return;
    read.of_file = files_->wait(read.file);
    begin_copy(read);
  }
}

// Waits until the first of the reads is in its slot; on a GPU makes the ops wait, and itself only for files, and if the
// read is logged.
void WeightReads::arrive(bool logs) {
  Read& read = reads_.front();
  if (!to_device_) {
    read.of_file = files_->wait(read.file);
    return;
  }
  copy_on(true);
  read.of_copy.start = steady_seconds();
  to_device_->follow(read.copy);
  if (logs) to_device_->wait(read.copy);
  read.of_copy.end = steady_seconds();
}

void WeightReads::read_ahead() {
  copy_on(false);
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
    lane_.await(unit);
    if (reads_.empty()) begin_next();
    const bool waits = files_ != nullptr && !files_->is_over(reads_.front().file);
    arrive(logs);
    read.start_seconds = reads_.front().of_file.start;
    read.end_seconds = reads_.front().of_file.end;
    copy.start_seconds = reads_.front().of_copy.start;
    copy.end_seconds = reads_.front().of_copy.end;
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
  slot = {.is_taken = false, .gather = gather, .released = released_, .copy = slot.copy};
  reads_.pop_front();
  ++released_;
  read_ahead();
}

}  // namespace gptrain::parallel
