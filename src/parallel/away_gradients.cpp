#include "parallel/away_gradients.h"

#include <exception>
#include <utility>

#include "ops/op_event.h"
#include "parallel/away_state.h"

namespace gptrain::inline parallel {

AwayGradients::AwayGradients(const ParameterStore& parameters, RankGroups& groups, Backend& backend,
                             WorkingFiles* files, Backend* gpu, const HostSlots& host_slots)
    : parameters_(parameters),
      groups_(groups),
      backend_(backend),
      files_(files),
      host_slots_(host_slots),
      copied_(parameters.gradient_slots().num_slots()) {
  if (gpu == nullptr) return;
  to_host_.emplace(*gpu);
  to_device_.emplace(*gpu);
}

AwayGradients::~AwayGradients() {
  try {
    finish();
  } catch (const std::exception&) {
    // Was reported by the call that found it.
  }
}

// Copies the unit's slot to its place on the host, or back. Logs that and, if it is logged, waits for the end.
RankQueue::Ticket AwayGradients::copy(int64_t unit, bool to_host) {
  if (!is_on_gpu()) return RankQueue::done;
  const int64_t bytes = parameters_.state_layout().part_bytes(AwayPart::gradients, unit);
  Event event = host_event(to_host, bytes);
  EventLog* const log = groups_.log();
  const bool logs = log != nullptr && log->on();
  RankQueue::Ticket ticket = RankQueue::done;
  if (to_host_) {
    void* const slot = parameters_.gradients_piece(unit).data;
    std::byte* const place = host_slots_.gradients(unit);
    RankQueue& queue = to_host ? *to_host_ : *to_device_;
    event.start_seconds = steady_seconds();
    ticket = to_host ? queue.download(place, slot, bytes) : queue.upload(slot, place, bytes);
    if (logs) queue.wait(ticket);
    event.end_seconds = steady_seconds();
    if (!to_host) queue.follow(ticket);
  }
  if (logs) log->add(std::move(event));
  return ticket;
}

// Returns the memory that files are read into and written from.
std::byte* AwayGradients::place_of_files(int64_t unit) const {
  return to_host_ ? host_slots_.gradients(unit) : static_cast<std::byte*>(parameters_.gradients_piece(unit).data);
}

// Begins to write to a file, once the gradients have come to the host.
void AwayGradients::write_file(Write& write) {
  if (files_ == nullptr || write.file != WorkingFiles::done) return;
  if (to_host_) to_host_->wait(write.copy);
  write.file =
      files_->begin_write(stored_piece(parameters_, AwayPart::gradients, write.unit), place_of_files(write.unit));
}

void AwayGradients::end(Write& write) {
  if (files_ == nullptr) {
    if (to_host_) to_host_->follow(write.copy);
    return;
  }
  write_file(write);
  const WorkingFiles::Times times = files_->wait(write.file);
  if (write.log != nullptr) write.log->set_times(write.event, times.start, times.end);
}

void AwayGradients::finish() {
  if (to_host_) to_host_->wait_all();
  for (Write& write : writes_) write_file(write);
  while (!writes_.empty()) {
    Write write = writes_.front();
    writes_.pop_front();
    end(write);
  }
}

// Waits until no write reads the unit's slot, and the unit itself is written.
void AwayGradients::await_slot(int64_t unit) {
  const UnitSlots& slots = parameters_.gradient_slots();
  std::deque<Write> others;
  for (Write& write : std::exchange(writes_, {})) {
    if (slots.slot(write.unit) == slots.slot(unit)) {
      end(write);
    } else {
      others.push_back(write);
    }
  }
  writes_ = std::move(others);
}

void AwayGradients::read_file(int64_t unit) {
  EventLog* const log = groups_.log();
  Event event = disk_event(false, parameters_.state_layout().part_bytes(AwayPart::gradients, unit));
  if (files_ != nullptr) {
    if (to_device_) to_device_->wait(copied_[parameters_.gradient_slots().slot(unit)]);
    const WorkingFiles::Times times =
        files_->wait(files_->begin_read(stored_piece(parameters_, AwayPart::gradients, unit), place_of_files(unit)));
    event.start_seconds = times.start;
    event.end_seconds = times.end;
  }
  if (log != nullptr && log->on() && parameters_.state_layout().lands(unit)) log->add(std::move(event));
}

void AwayGradients::read(int64_t unit) {
  await_slot(unit);
  read_file(unit);
  copied_[parameters_.gradient_slots().slot(unit)] = copy(unit, false);
}

void AwayGradients::load(int64_t unit, std::byte* bucket) {
  const int64_t elements = parameters_.piece_elements(unit);
  if (elements == 0 || resting_) return;
  read(unit);
  backend_.run(Cast{.from = parameters_.gradients_piece(unit), .to = Matrix(bucket, DType::f32, 1, elements)});
}

void AwayGradients::take(int64_t unit, const std::byte* bucket, int64_t micro_batch) {
  const UnitPiece own = parameters_.piece(unit);
  if (own.elements == 0) return;
  const bool adds = parameters_.sharding().cuts_gradients() && micro_batch > 0;
  if (adds) {
    read(unit);
  } else {
    await_slot(unit);
  }
  const Matrix from(const_cast<std::byte*>(bucket) + own.first * dtype_bytes(DType::f32), DType::f32, 1, own.elements);
  const Matrix to = parameters_.gradients_piece(unit);
  if (adds) {
    backend_.run(Add{.from = from, .to = to});
  } else {
    backend_.run(Cast{.from = from, .to = to});
  }
}

void AwayGradients::prepare(int64_t unit, bool reads) {
  if (parameters_.piece_elements(unit) == 0) return;
  if (reads) return read(unit);
  await_slot(unit);
}

void AwayGradients::write(int64_t unit) {
  if (parameters_.piece_elements(unit) == 0) return;
  EventLog* const log = groups_.log();
  for (Write& earlier : writes_) write_file(earlier);  // these have likely come to the host
  Write write{.unit = unit, .copy = copy(unit, true)};
  if (log != nullptr && log->on() && parameters_.state_layout().lands(unit)) {
    write.log = log;
    write.event = log->add(disk_event(true, parameters_.state_layout().part_bytes(AwayPart::gradients, unit)));
  }
  if (!to_host_ || write.log != nullptr) write_file(write);  // a copy that is logged is over
  writes_.push_back(write);
}

}  // namespace gptrain::parallel
