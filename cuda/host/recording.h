// Work of the host harness' streams: queued, or recorded, as a CUDA graph is, to be queued later and again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "host/device_queues.h"
#include "stream.h"

namespace gptrain::simt {

// Queues the work (does it at once on a stream of no device), or keeps it where this thread records.
void start(const Stream& stream, const Work& work);
void begin_recording();
std::vector<Work> end_recording();
bool recording();

// Where GPTRAIN_LAUNCH_LOG names a file, adds a line for each kernel and shape that is new: the kernel's place in the
// program, blocks, threads of a block, bytes of its shared memory. tools/gpu/kernel_report.sh reads it.
void note_launch(const void* kernel, int64_t blocks, unsigned threads, size_t shared_bytes);

}  // namespace gptrain::simt
