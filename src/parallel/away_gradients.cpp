#include "parallel/away_gradients.h"

#include <exception>
#include <utility>

#include "ops/op_event.h"
#include "parallel/away_state.h"

namespace gptrain::inline parallel {

AwayGradients::AwayGradients(const ParameterStore& parameters, RankGroups& groups, Backend& backend,
                             WorkingFiles* files)
    : parameters_(parameters), groups_(groups), backend_(backend), files_(files) {}

AwayGradients::~AwayGradients() {
  try {
    finish();
  } catch (const std::exception&) {
    // Was reported by the call that found it.
  }
}

void AwayGradients::end(const Write& write) {
  if (files_ == nullptr) return;
  const WorkingFiles::Times times = files_->wait(write.ticket);
  if (write.log != nullptr) write.log->set_times(write.event, times.start, times.end);
}

void AwayGradients::finish() {
  while (!writes_.empty()) {
    const Write write = writes_.front();
    writes_.pop_front();
    end(write);
  }
}

// Waits until no write reads the unit's slot, and the unit itself is written.
void AwayGradients::await_slot(int64_t unit) {
  const UnitSlots& slots = parameters_.gradient_slots();
  std::deque<Write> others;
  for (const Write& write : std::exchange(writes_, {})) {
    if (slots.slot(write.unit) == slots.slot(unit)) {
      end(write);
    } else {
      others.push_back(write);
    }
  }
  writes_ = std::move(others);
}

void AwayGradients::read(int64_t unit) {
  await_slot(unit);
  EventLog* const log = groups_.log();
  const int64_t bytes = parameters_.state_layout().part_bytes(AwayPart::gradients, unit);
  Event event = disk_event(false, bytes);
  if (files_ != nullptr) {
    const WorkingFiles::Ticket ticket =
        files_->begin_read(stored_piece(parameters_, AwayPart::gradients, unit),
                           static_cast<std::byte*>(parameters_.gradients_piece(unit).data));
    const WorkingFiles::Times times = files_->wait(ticket);
    event.start_seconds = times.start;
    event.end_seconds = times.end;
  }
  const bool logs = log != nullptr && log->on();
  if (logs && parameters_.state_layout().lands(unit)) log->add(std::move(event));
  if (logs && is_on_gpu()) log->add(host_event(false, bytes));
}

void AwayGradients::load(int64_t unit, std::byte* bucket) {
  const int64_t elements = parameters_.piece_elements(unit);
  if (elements == 0) return;
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
  Write write{.unit = unit, .ticket = WorkingFiles::done, .log = nullptr, .event = -1};
  const int64_t bytes = parameters_.state_layout().part_bytes(AwayPart::gradients, unit);
  const bool logs = log != nullptr && log->on();
  if (logs && is_on_gpu()) log->add(host_event(true, bytes));
  if (logs && parameters_.state_layout().lands(unit)) {
    write.log = log;
    write.event = log->add(disk_event(true, bytes));
  }
  if (files_ != nullptr)
    write.ticket = files_->begin_write(stored_piece(parameters_, AwayPart::gradients, unit),
                                       static_cast<std::byte*>(parameters_.gradients_piece(unit).data));
  writes_.push_back(write);
}

}  // namespace gptrain::parallel
