#include "host/recording.h"

#include <optional>
#include <utility>

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

}  // namespace gptrain::simt
