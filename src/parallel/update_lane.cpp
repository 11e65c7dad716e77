#include "parallel/update_lane.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "base/control_group.h"
#include "base/thread.h"
#include "ops/op_event.h"
#include "parallel/away_state.h"

namespace gptrain::inline parallel {
namespace {

constexpr std::string_view update_wait_name = "await_update";

}  // namespace

UpdateLane::UpdateLane(const ParameterStore& parameters, Backend& backend, RankGroups& groups, WorkingFiles* files,
                       UpdateCopies* copies, bool beside_device, const std::vector<int>& cores)
    : parameters_(parameters),
      backend_(backend),
      groups_(groups),
      files_(files),
      copies_(copies),
      beside_device_(beside_device),
      writing_(parameters.num_parameter_units()),
      weight_writes_(parameters.num_parameter_units(), WorkingFiles::done),
      pending_(parameters.num_parameter_units()),
      returns_(parameters.num_parameter_units()) {
  const std::vector<int64_t>& away = parameters.state_layout().away_units();
  std::copy_if(away.begin(), away.end(), std::back_inserter(order_),
               [&](int64_t unit) { return parameters.state_layout().lands(unit); });
  if (!has_thread()) return;
  thread_ = start_thread("updates weights", [this, cores] {
    bind_thread(cores);
    work();
  });
}

UpdateLane::~UpdateLane() {
  if (!has_thread()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    waiting_.clear();
    changed_.notify_all();
  }
  thread_.join();
  if (files_ == nullptr) return;
  // No transfer may outlive the landing area.
  try {
    for (const Transfers& reads : reads_) wait(reads);
    for (const WorkingFiles::Ticket ticket : gradient_reads_) files_->wait(ticket);
    for (const Writing& writing : writing_) wait(writing.transfers);
  } catch (const std::exception&) {
    // Was reported by the call that found it.
  }
}

void UpdateLane::begin(int64_t unit) {
  EventLog* const log = groups_.log();
  const bool logs = log != nullptr && log->on();
  called_ = {.unit = unit, .works = {}, .log = logs ? log : nullptr};
  if (logs && parameters_.state_layout().lands(unit))
    called_.read_event = log->add(disk_event(false, away_bytes(parameters_, unit).read + gradient_bytes(unit)));
  called_.to_host_event = log_copy(unit, true);
  if (logs) log->set_queue(Event::Queue::update);
  if (!has_thread()) return;
  if (copies_ != nullptr) copies_->mark_sums(unit);
  backend_.set_log(called_.log);
  backend_.defer();
}

void UpdateLane::end(int64_t unit) {
  EventLog* const log = called_.log;
  called_.to_device_event = log_copy(unit, false);
  if (log != nullptr) {
    log->set_queue(Event::Queue::ops);
    if (parameters_.state_layout().lands(unit))
      called_.write_event = log->add(disk_event(true, away_bytes(parameters_, unit).written));
  }
  if (!has_thread()) return;
  called_.works = backend_.take();
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  suspended_ = false;
  pending_[unit] = true;
  ++num_pending_;
  if (parameters_.state_layout().lands(unit)) ++issued_;
  waiting_.push_back(std::move(called_));
  changed_.notify_all();
}

// Logs the copy of a unit's gradients to the host, or of its updated weights back. Returns the event's number.
int64_t UpdateLane::log_copy(int64_t unit, bool to_host) const {
  const int64_t bytes = beside_device_ && called_.log != nullptr ? passed_bytes(parameters_, unit, to_host) : 0;
  return bytes > 0 ? called_.log->add(host_event(to_host, bytes)) : -1;
}

void UpdateLane::await(int64_t unit) {
  if (num_pending_ == 0 && copies_ == nullptr) return;
  std::unique_lock lock(mutex_);
  const bool waits = !failure_ && pending_[unit];
  const double start = steady_seconds();
  changed_.wait(lock, [&] { return failure_ || !pending_[unit]; });
  if (failure_) std::rethrow_exception(failure_);
  follow(unit);
  EventLog* const log = groups_.log();
  if (waits && log != nullptr && log->on())
    log->add(
        {.kind = Event::Kind::wait, .name = update_wait_name, .start_seconds = start, .end_seconds = steady_seconds()});
}

// Makes ops see the unit's updated weights. REQUIRES: mutex_ is held.
void UpdateLane::follow(int64_t unit) {
  if (!returns_[unit]) return;
  returns_[unit] = false;
  copies_->follow(unit);
}

void UpdateLane::await_weights(int64_t unit) {
  await(unit);
  if (files_ != nullptr) files_->wait(weight_writes_[unit]);
}

bool UpdateLane::weights_written(int64_t unit) {
  const std::lock_guard lock(mutex_);
  return !pending_[unit] && (files_ == nullptr || files_->is_over(weight_writes_[unit]));
}

void UpdateLane::wait_idle(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [this] { return failure_ || (waiting_.empty() && !busy_); });
  if (failure_) std::rethrow_exception(failure_);
}

void UpdateLane::drain() {
  if (!has_thread()) return;
  backend_.set_log(groups_.log());
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return failure_ || num_pending_ == 0; });
  if (failure_) std::rethrow_exception(failure_);
  for (int64_t unit = 0; unit < std::ssize(returns_); ++unit) follow(unit);
}

void UpdateLane::suspend() {
  if (!has_thread()) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return failure_ || num_pending_ == 0; });
  suspended_ = true;
  wait_idle(lock);
  for (int64_t unit = 0; unit < std::ssize(returns_); ++unit) follow(unit);
  lock.unlock();
  if (files_ == nullptr) return;
  for (const Transfers& reads : reads_) wait(reads);
  reads_.clear();
  for (const int64_t unit : order_) end_writing(unit);
}

void UpdateLane::resume() {
  if (files_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  suspended_ = false;
  changed_.notify_all();
}

bool UpdateLane::is_over(const Transfers& transfers) const {
  return files_->is_over(transfers.state) && files_->is_over(transfers.weights);
}

WorkingFiles::Times UpdateLane::wait(const Transfers& transfers) {
  const WorkingFiles::Times state = files_->wait(transfers.state), weights = files_->wait(transfers.weights);
  if (weights.end == 0) return state;
  return {.start = state.end > 0 ? std::min(state.start, weights.start) : weights.start,
          .end = std::max(state.end, weights.end)};
}

int64_t UpdateLane::gradient_bytes(int64_t unit) const {
  return parameters_.state_layout().part_bytes(AwayPart::gradients, unit);
}

// Returns whether the landing places of two units share a byte.
bool UpdateLane::overlap(int64_t a, int64_t b) const {
  const StateLayout& layout = parameters_.state_layout();
  const int64_t first = layout.landing_offset(a), second = layout.landing_offset(b);
  return first < second + layout.range_away(b).bytes && second < first + layout.range_away(a).bytes;
}

// Returns whether the next read would disturb no unit that was read and not yet updated.
bool UpdateLane::can_read_ahead() const {
  const int64_t next = visited_ + std::ssize(reads_);
  if (order_.empty() || next >= visited_ + parameters_.state_layout().most_landed()) return false;
  for (int64_t visit = visited_; visit < next; ++visit)
    if (overlap(unit_at(visit), unit_at(next))) return false;
  return true;
}

// Waits until the unit's state is written.
void UpdateLane::end_writing(int64_t unit) {
  Writing& writing = writing_[unit];
  if (!writing.transfers.any()) return;
  const WorkingFiles::Times times = wait(writing.transfers);
  if (writing.log != nullptr) writing.log->set_times(writing.event, times.start, times.end);
  writing = {};
}

// Begins the next read, once all earlier state at its place is written. Returns false, and begins nothing, if it would
// have to wait for that and `may_wait` is false.
bool UpdateLane::begin_read(bool may_wait) {
  const int64_t unit = unit_at(visited_ + std::ssize(reads_));
  for (const int64_t other : order_) {
    const Transfers& transfers = writing_[other].transfers;
    if (!transfers.any() || !overlap(other, unit)) continue;
    if (!may_wait && !is_over(transfers)) return false;
    end_writing(other);
  }
  const auto begin = [&](AwayPart part) {
    return files_->begin_read(stored_piece(parameters_, part, unit), parameters_.landing(unit, part));
  };
  reads_.push_back(
      {.state = begin(AwayPart::state),
       .weights = parameters_.sharding().updates_weights() ? begin(AwayPart::weights) : WorkingFiles::done});
  return true;
}

void UpdateLane::read_ahead(bool may_wait) {
  while (can_read_ahead() && begin_read(may_wait)) {
  }
}

// Begins to read the gradients of landed units whose updates were issued, after which no op writes them.
void UpdateLane::read_gradients() {
  if (!parameters_.sharding().gradients_away) return;
  const int64_t end = std::min(visited_ + std::ssize(reads_), issued_.load());
  while (visited_ + std::ssize(gradient_reads_) < end) {
    const int64_t unit = unit_at(visited_ + std::ssize(gradient_reads_));
    gradient_reads_.push_back(files_->begin_read(stored_piece(parameters_, AwayPart::gradients, unit),
                                                 parameters_.landing(unit, AwayPart::gradients)));
  }
}

// Waits until the range of the unit, which is next, has landed.
void UpdateLane::land(const Update& update) {
  const int64_t unit = update.unit;
  if (unit != unit_at(visited_)) throw std::logic_error("units are updated in the order of the layout");
  if (reads_.empty()) begin_read(true);
  read_ahead(false);
  read_gradients();
  WorkingFiles::Times times = wait(reads_.front());
  read_ahead(false);  // more writes are over: the drive reads on while this unit is updated
  reads_.pop_front();
  if (!gradient_reads_.empty()) {
    const WorkingFiles::Times last = files_->wait(gradient_reads_.front());
    gradient_reads_.pop_front();
    times = {.start = times.end > 0 ? times.start : last.start, .end = std::max(times.end, last.end)};
  }
  if (update.log != nullptr) update.log->set_times(update.read_event, times.start, times.end);
  // Ops do not write the padding of weights.
  if (!parameters_.sharding().updates_weights())
    std::memset(parameters_.landing(unit, AwayPart::weights), 0,
                parameters_.state_layout().part_bytes(AwayPart::weights, unit));
}

// Waits until the unit's gradients are on the host, and begins to bring those of the `next` unit; negative: none.
void UpdateLane::bring(const Update& update, int64_t next) {
  const double start = steady_seconds();
  if (brought_ != update.unit) copies_->bring(update.unit);
  copies_->await_brought(update.unit);
  brought_ = next;
  if (update.log != nullptr && update.to_host_event >= 0)
    update.log->set_times(update.to_host_event, start, steady_seconds());
  if (next >= 0) copies_->bring(next);
}

// Begins to copy the unit's weights to the device. Waits for the end if it is logged.
void UpdateLane::give_back(const Update& update) {
  const double start = steady_seconds();
  copies_->give_back(update.unit);
  if (update.log == nullptr || update.to_device_event < 0) return;
  copies_->await_given(update.unit);
  update.log->set_times(update.to_device_event, start, steady_seconds());
}

void UpdateLane::run(Update& update, int64_t next) {
  const int64_t unit = update.unit;
  const bool lands = parameters_.state_layout().lands(unit);
  if (lands) land(update);
  if (copies_ != nullptr) bring(update, update.log == nullptr ? next : -1);
  for (const std::function<void()>& work : update.works) work();
  if (copies_ != nullptr) give_back(update);
  if (!lands) return;
  const auto begin = [&](AwayPart part) {
    return files_->begin_write(stored_piece(parameters_, part, unit), parameters_.landing(unit, part));
  };
  Writing& writing = writing_[unit];
  writing = {.transfers = {.state = begin(AwayPart::state), .weights = begin(AwayPart::weights)},
             .log = update.log,
             .event = update.write_event};
  weight_writes_[unit] = writing.transfers.weights;
  ++visited_;
}

void UpdateLane::work() {
  const auto is_asked = [this] { return stopping_ || !waiting_.empty(); };
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return is_asked() || (!suspended_ && can_read_ahead()); });
    if (stopping_) return;
    Update update;
    int64_t next = -1;
    if (!waiting_.empty()) {
      update = std::move(waiting_.front());
      waiting_.pop_front();
      if (!waiting_.empty()) next = waiting_.front().unit;
    }
    busy_ = true;
    lock.unlock();
    bool has_begun = true;
    std::exception_ptr failure;
    try {
      if (update.unit >= 0) {
        run(update, next);
      } else {
        has_begun = begin_read(false);
      }
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    busy_ = false;
    if (failure) {
      failure_ = failure;
      suspended_ = true;
      waiting_.clear();
    }
    if (update.unit >= 0) {
      pending_[update.unit] = false;
      returns_[update.unit] = copies_ != nullptr && !failure;
      --num_pending_;
    }
    changed_.notify_all();
    // A read whose place holds state that is still being written is tried again in a millisecond, unless an update
    // waits.
    if (!has_begun) changed_.wait_for(lock, std::chrono::milliseconds(1), is_asked);
  }
}

}  // namespace gptrain::parallel
