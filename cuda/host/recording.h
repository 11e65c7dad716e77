// Work of the host harness' streams: done at once, or recorded, as a CUDA graph is, to be done later and again.
#pragma once

#include <functional>
#include <vector>

namespace gptrain::simt {

using Work = std::function<void()>;

// Does the work, or keeps it where this thread records.
void start(const Work& work);
void begin_recording();
std::vector<Work> end_recording();
bool recording();

}  // namespace gptrain::simt
