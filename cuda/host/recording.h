// Work of the host harness's streams: queued, or recorded like a CUDA graph to be queued later, any number of times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "host/device_queues.h"
#include "stream.h"

namespace gptrain::simt {

// Queues the work (runs it at once on a stream without a device), or records it if this thread is recording.
void start(const Stream& stream, const Work& work);
void begin_recording();
std::vector<Work> end_recording();
bool recording();

// If GPTRAIN_LAUNCH_LOG names a file, appends a line for each new kernel and shape: the kernel's offset in the program,
// blocks, threads per block, bytes of shared memory. tools/gpu/kernel_report.sh reads it.
void note_launch(const void* kernel, int64_t blocks, unsigned threads, size_t shared_bytes);

}  // namespace gptrain::simt
