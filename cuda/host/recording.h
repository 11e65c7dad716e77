// Work of the host harness' streams: queued, or recorded, as a CUDA graph is, to be queued later and again.
#pragma once

#include <vector>

#include "host/device_queues.h"
#include "stream.h"

namespace gptrain::simt {

// Queues the work (does it at once on a stream of no device), or keeps it where this thread records.
void start(const Stream& stream, const Work& work);
void begin_recording();
std::vector<Work> end_recording();
bool recording();

}  // namespace gptrain::simt
