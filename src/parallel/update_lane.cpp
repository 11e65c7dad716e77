#include "parallel/update_lane.h"

#include <algorithm>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "base/thread.h"
#include "ops/op_event.h"

namespace gptrain::inline parallel {
namespace {

constexpr std::string_view update_wait_name = "await_update";

}  // namespace

UpdateLane::UpdateLane(const ParameterStore& parameters, Backend& backend, RankGroups& groups, WorkingFiles* files)
    : parameters_(parameters),
      backend_(backend),
      groups_(groups),
      files_(files),
      writing_(static_cast<size_t>(parameters.num_parameter_units())),
      pending_(static_cast<size_t>(parameters.num_parameter_units())) {
  for (int64_t unit = 0; unit < parameters.num_parameter_units(); ++unit)
    if (parameters.state_layout().is_away(unit)) order_.push_back(unit);
  if (files != nullptr) thread_ = start_thread("updates weights", [this] { work(); });
}

UpdateLane::~UpdateLane() {
  if (files_ == nullptr) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    waiting_.clear();
    changed_.notify_all();
  }
  thread_.join();
  // No transfer may outlive the landing area.
  try {
    for (const WorkingFiles::Ticket ticket : reads_) files_->wait(ticket);
    for (const Writing& writing : writing_) files_->wait(writing.ticket);
  } catch (const std::exception&) {
    // Was reported by the call that found it.
  }
}

void UpdateLane::begin(int64_t unit) {
  EventLog* const log = groups_.log();
  const bool logs = log != nullptr && log->on();
  called_ = {.unit = unit, .works = {}, .log = logs ? log : nullptr};
  if (logs && parameters_.state_layout().is_away(unit))
    called_.read_event = log->add(disk_event(false, parameters_.state_layout().range_away(unit).bytes));
  if (logs) log->set_queue(Event::Queue::update);
  if (files_ == nullptr) return;
  backend_.set_log(called_.log);
  backend_.defer();
}

void UpdateLane::end(int64_t unit) {
  EventLog* const log = called_.log;
  if (log != nullptr) {
    log->set_queue(Event::Queue::ops);
    if (parameters_.state_layout().is_away(unit))
      called_.write_event = log->add(disk_event(true, parameters_.state_layout().range_away(unit).bytes));
  }
  if (files_ == nullptr) return;
  called_.works = backend_.take();
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  suspended_ = false;
  pending_[static_cast<size_t>(unit)] = true;
  ++num_pending_;
  waiting_.push_back(std::move(called_));
  changed_.notify_all();
}

void UpdateLane::await(int64_t unit) {
  if (num_pending_ == 0) return;
  std::unique_lock lock(mutex_);
  const bool waits = !failure_ && pending_[static_cast<size_t>(unit)];
  const double start = steady_seconds();
  changed_.wait(lock, [&] { return failure_ || !pending_[static_cast<size_t>(unit)]; });
  if (failure_) std::rethrow_exception(failure_);
  EventLog* const log = groups_.log();
  if (waits && log != nullptr && log->on())
    log->add(
        {.kind = Event::Kind::wait, .name = update_wait_name, .start_seconds = start, .end_seconds = steady_seconds()});
}

void UpdateLane::wait_idle(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [this] { return failure_ || (waiting_.empty() && !busy_); });
  if (failure_) std::rethrow_exception(failure_);
}

void UpdateLane::drain() {
  if (files_ == nullptr) return;
  backend_.set_log(groups_.log());
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return failure_ || num_pending_ == 0; });
  if (failure_) std::rethrow_exception(failure_);
}

void UpdateLane::suspend() {
  if (files_ == nullptr) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return failure_ || num_pending_ == 0; });
  suspended_ = true;
  wait_idle(lock);
  lock.unlock();
  for (const WorkingFiles::Ticket ticket : reads_) files_->wait(ticket);
  reads_.clear();
  for (const int64_t unit : order_) end_writing(unit);
}

void UpdateLane::resume() {
  if (files_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  suspended_ = false;
  changed_.notify_all();
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
  if (order_.empty() || next >= visited_ + std::min(StateLayout::most_landed, std::ssize(order_))) return false;
  for (int64_t visit = visited_; visit < next; ++visit)
    if (overlap(unit_at(visit), unit_at(next))) return false;
  return true;
}

// Waits until the unit's state is written.
void UpdateLane::end_writing(int64_t unit) {
  Writing& writing = writing_[static_cast<size_t>(unit)];
  if (writing.ticket == WorkingFiles::done) return;
  const WorkingFiles::Times times = files_->wait(writing.ticket);
  if (writing.log != nullptr) writing.log->set_times(writing.event, times.start, times.end);
  writing = {};
}

// Begins the next read, once all earlier state at its place is written. Returns false, and begins nothing, if it would
// have to wait for that and `may_wait` is false.
bool UpdateLane::begin_read(bool may_wait) {
  const int64_t unit = unit_at(visited_ + std::ssize(reads_));
  for (const int64_t other : order_) {
    const WorkingFiles::Ticket ticket = writing_[static_cast<size_t>(other)].ticket;
    if (ticket == WorkingFiles::done || !overlap(other, unit)) continue;
    if (!may_wait && !files_->is_over(ticket)) return false;
    end_writing(other);
  }
  reads_.push_back(files_->begin_read(static_cast<size_t>(unit), parameters_.landing(unit)));
  return true;
}

void UpdateLane::read_ahead(bool may_wait) {
  while (can_read_ahead() && begin_read(may_wait)) {
  }
}

void UpdateLane::run(Update& update) {
  const bool away = parameters_.state_layout().is_away(update.unit);
  if (away) {
    if (update.unit != unit_at(visited_)) throw std::logic_error("units are updated in the order of their numbers");
    if (reads_.empty()) begin_read(true);
    read_ahead(false);
    const WorkingFiles::Times times = files_->wait(reads_.front());
    reads_.pop_front();
    if (update.log != nullptr) update.log->set_times(update.read_event, times.start, times.end);
  }
  for (const std::function<void()>& work : update.works) work();
  if (!away) return;
  writing_[static_cast<size_t>(update.unit)] = {
      files_->begin_write(static_cast<size_t>(update.unit), parameters_.landing(update.unit)), update.log,
      update.write_event};
  ++visited_;
}

void UpdateLane::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !waiting_.empty() || (!suspended_ && can_read_ahead()); });
    if (stopping_) return;
    Update update;
    if (!waiting_.empty()) {
      update = std::move(waiting_.front());
      waiting_.pop_front();
    }
    busy_ = true;
    lock.unlock();
    std::exception_ptr failure;
    try {
      if (update.unit >= 0) {
        run(update);
      } else {
        begin_read(true);
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
      pending_[static_cast<size_t>(update.unit)] = false;
      --num_pending_;
    }
    changed_.notify_all();
  }
}

}  // namespace gptrain::parallel
