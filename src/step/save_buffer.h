// The memory of the buffer through which a save writes.
#pragma once

#include <cstdint>

#include "checkpoint/files.h"
#include "schedule/step_choices.h"

namespace gptrain::inline step {

// Returns the bytes of the buffer through which a save writes a large file; 0 unless state is on disk, as other runs
// have so much in memory that the buffer does not matter.
inline int64_t save_buffer_bytes(const StepChoices& choices) {
  return choices.keeps_state_on_disk() ? SyncedFile::direct_buffer_bytes : 0;
}

}  // namespace gptrain::step
