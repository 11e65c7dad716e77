#include "parallel/update_lane.h"

#include <algorithm>
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
      writes_(parameters.num_parameter_units()),
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
  bool drops = false;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    drops = !waiting_.empty();
    waiting_.clear();
    changed_.notify_all();
  }
  thread_.join();
  if (files_ == nullptr) return;
  // No transfer may outlive the landing area.
  try {
    if (drops) files_->give_up(std::make_exception_ptr(std::logic_error("updates were dropped")));
    for (const Transfers& read : reads_) wait(read);
    for (const Write& write : writes_) wait(write.transfers);
  } catch (const std::exception&) {
    // Was reported by the call that found it.
  }
}

void UpdateLane::begin(int64_t unit) {
  EventLog* const log = groups_.log();
  const bool logs = log != nullptr && log->on();
  called_ = {.unit = unit, .works = {}, .log = logs ? log : nullptr};
  if (logs && parameters_.state_layout().lands(unit)) {
    called_.read_event = log->add(disk_event(false, away_bytes(parameters_, unit).read));
    Event gradients = disk_event(false, parameters_.state_layout().part_bytes(AwayPart::gradients, unit));
    gradients.name = gradient_read_name;
    if (gradients.bytes_moved > 0) called_.gradients_event = log->add(std::move(gradients));
  }
  called_.to_host_event = log_copy(unit, true);
  if (logs) log->set_queue(Event::Queue::update);
  if (!has_thread()) return;
  if (copies_ != nullptr) copies_->mark_sums(unit);
  backend_.set_log(called_.log);
  backend_.defer();
}

void UpdateLane::end(int64_t unit) {
  EventLog* const log = called_.log;
  const bool lands = parameters_.state_layout().lands(unit);
  called_.to_device_event = log_copy(unit, false);
  int64_t write_event = -1;
  if (log != nullptr) {
    log->set_queue(Event::Queue::ops);
    if (lands) write_event = log->add(disk_event(true, away_bytes(parameters_, unit).written));
  }
  if (!has_thread()) return;
  called_.works = backend_.take();
  called_.write = {.log = log, .event = write_event};
  if (lands) ask(called_);
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  pending_[unit] = true;
  ++num_pending_;
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

bool UpdateLane::is_over(int64_t unit) {
  const std::lock_guard lock(mutex_);
  return !pending_[unit];
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
  wait_idle(lock);
  for (int64_t unit = 0; unit < std::ssize(returns_); ++unit) follow(unit);
  lock.unlock();
  if (files_ == nullptr) return;
  for (const Transfers& read : reads_) wait(read);
  reads_.clear();
  for (Write& write : writes_) {
    end_write(write);
    write = {};
  }
}

void UpdateLane::resume() {
  if (files_ != nullptr) read_ahead();
}

WorkingFiles::Times UpdateLane::wait(const Transfers& transfers) {
  const WorkingFiles::Times state = files_->wait(transfers.state), weights = files_->wait(transfers.weights);
  if (weights.end == 0) return state;
  return {.start = state.end > 0 ? std::min(state.start, weights.start) : weights.start,
          .end = std::max(state.end, weights.end)};
}

// Waits until a unit's state is written.
void UpdateLane::end_write(const Write& write) {
  const WorkingFiles::Times times = wait(write.transfers);
  if (write.log != nullptr && times.end > 0) write.log->set_times(write.event, times.start, times.end);
}

// Returns whether the landing places of two units share a byte.
bool UpdateLane::overlap(int64_t a, int64_t b) const {
  const StateLayout& layout = parameters_.state_layout();
  const int64_t first = layout.landing_offset(a), second = layout.landing_offset(b);
  return first < second + layout.range_away(b).bytes && second < first + layout.range_away(a).bytes;
}

// Returns the last writes of the units whose landing places share a byte with the unit's.
std::vector<WorkingFiles::Ticket> UpdateLane::writes_at_place_of(int64_t unit) const {
  std::vector<WorkingFiles::Ticket> tickets;
  for (const int64_t other : order_) {
    if (!overlap(other, unit)) continue;
    const auto [state, weights] = writes_[other].transfers;
    tickets.insert(tickets.end(), {state, weights});
  }
  return tickets;
}

// Returns whether the next read would disturb no unit that was read and whose update is not issued.
bool UpdateLane::can_read_ahead() const {
  const int64_t next = issued_ + std::ssize(reads_);
  if (order_.empty() || next >= issued_ + parameters_.state_layout().most_landed()) return false;
  for (int64_t visit = issued_; visit < next; ++visit)
    if (overlap(unit_at(visit), unit_at(next))) return false;
  return true;
}

// Asks for the state of the next visits.
void UpdateLane::read_ahead() {
  while (can_read_ahead()) {
    const int64_t unit = unit_at(issued_ + std::ssize(reads_));
    const auto begin = [&](AwayPart part) {
      return files_->begin_read(stored_piece(parameters_, part, unit), parameters_.landing(unit, part),
                                writes_at_place_of(unit));
    };
    reads_.push_back(
        {.state = begin(AwayPart::state),
         .weights = parameters_.sharding().updates_weights() ? begin(AwayPart::weights) : WorkingFiles::done});
  }
}

// Asks for the transfers of an update that is issued, and for the reads of the next ones.
void UpdateLane::ask(Update& update) {
  const int64_t unit = update.unit;
  if (unit != unit_at(issued_)) throw std::logic_error("units are updated in the order of the layout");
  read_ahead();  // after `suspend` nothing was read
  update.read = reads_.front();
  reads_.pop_front();
  // No op writes gradients from here on.
  if (parameters_.sharding().gradients_away)
    update.gradients = files_->begin_read(stored_piece(parameters_, AwayPart::gradients, unit),
                                          parameters_.landing(unit, AwayPart::gradients), writes_at_place_of(unit));
  update.last_write = writes_[unit];
  const auto reserve = [&](AwayPart part) { return files_->reserve_write(stored_piece(parameters_, part, unit)); };
  update.write.transfers = {.state = reserve(AwayPart::state), .weights = reserve(AwayPart::weights)};
  writes_[unit] = update.write;
  ++issued_;
  read_ahead();
}

// Waits until the range of the unit, which is next, has landed.
void UpdateLane::land(const Update& update) {
  const WorkingFiles::Times read = wait(update.read), gradients = files_->wait(update.gradients);
  end_write(update.last_write);  // is over, as the read came after it
  if (update.log != nullptr) {
    update.log->set_times(update.read_event, read.start, read.end);
    if (update.gradients_event >= 0) update.log->set_times(update.gradients_event, gradients.start, gradients.end);
  }
  // Ops do not write the padding of weights.
  if (!parameters_.sharding().updates_weights())
    std::memset(parameters_.landing(update.unit, AwayPart::weights), 0,
                parameters_.state_layout().part_bytes(AwayPart::weights, update.unit));
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
  files_->begin_reserved(update.write.transfers.state, parameters_.landing(unit, AwayPart::state));
  files_->begin_reserved(update.write.transfers.weights, parameters_.landing(unit, AwayPart::weights));
}

void UpdateLane::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    Update update = std::move(waiting_.front());
    waiting_.pop_front();
    const int64_t next = waiting_.empty() ? -1 : waiting_.front().unit;
    busy_ = true;
    lock.unlock();
    std::exception_ptr failure;
    try {
      run(update, next);
    } catch (...) {
      failure = std::current_exception();
      if (files_ != nullptr) files_->give_up(failure);
    }
    lock.lock();
    busy_ = false;
    if (failure) {
      failure_ = failure;
      waiting_.clear();
    }
    pending_[update.unit] = false;
    returns_[update.unit] = copies_ != nullptr && !failure;
    --num_pending_;
    changed_.notify_all();
  }
}

}  // namespace gptrain::parallel
