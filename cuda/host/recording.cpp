#include "host/recording.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

extern "C" const char __executable_start;  // defined by the linker

namespace gptrain::simt {
namespace {

thread_local std::optional<std::vector<Work>> recorded;

}  // namespace

void start(const Stream& stream, const Work& work) {
  if (recorded) {
    recorded->push_back(work);
  } else if (stream.device != nullptr) {
    stream.device->add(stream.queue, work);
  } else {
    work();
  }
}

void begin_recording() { recorded.emplace(); }

std::vector<Work> end_recording() {
  std::vector<Work> result = std::move(*recorded);
  recorded.reset();
  return result;
}

bool recording() { return recorded.has_value(); }

void note_launch(const void* kernel, int64_t blocks, unsigned threads, size_t shared_bytes) {
  static std::FILE* const log = [] {
    const char* const file = std::getenv("GPTRAIN_LAUNCH_LOG");
    return file == nullptr ? nullptr : std::fopen(file, "a");
  }();
  if (log == nullptr) return;
  static std::mutex mutex;
  static std::set<std::tuple<const void*, unsigned, size_t>> seen;
  const std::lock_guard lock(mutex);
  if (!seen.insert({kernel, threads, shared_bytes}).second) return;
  std::fprintf(log, "%zx %lld %u %zu\n", static_cast<size_t>(static_cast<const char*>(kernel) - &__executable_start),
               static_cast<long long>(blocks), threads, shared_bytes);
  std::fflush(log);
}

}  // namespace gptrain::simt
