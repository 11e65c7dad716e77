#include "streams.h"

#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

using Clock = std::chrono::steady_clock;

namespace {

std::mutex ending_mutex;
std::vector<std::thread> ending;  // each waits for a destroyed stream's work

}  // namespace

void wait_for_destroyed_streams() {
  const std::lock_guard lock(ending_mutex);
  for (std::thread& thread : ending) thread.join();
  ending.clear();
}

CUstream_st::CUstream_st(uint64_t seed) : random_(seed), thread_([this] { run(); }) {}

CUstream_st::~CUstream_st() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CUstream_st::add(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  work_.push_back(std::move(work));
  changed_.notify_all();
}

bool CUstream_st::is_idle() {
  const std::lock_guard lock(mutex_);
  return work_.empty();
}

void CUstream_st::wait_until_idle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return work_.empty(); });
}

void CUstream_st::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ends_ || !work_.empty(); });
    if (work_.empty()) return;
    const std::function<void()> work = work_.front();
    lock.unlock();
    // Begins some work late, as a busy device does.
    if (random_() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random_() % 300));
    work();
    lock.lock();
    work_.pop_front();
    changed_.notify_all();
  }
}

void StreamPosition::reach() {
  const std::lock_guard lock(mutex_);
  reached_ = true;
  when_ = Clock::now();
  changed_.notify_all();
}

void StreamPosition::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return reached_; });
}

extern "C" {

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "threads of this process");
  properties->multiProcessorCount = 64;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  if (attribute != cudaDevAttrMultiProcessorCount) return cudaErrorInvalidValue;
  *value = 64;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) { return "an error of the stand-in"; }
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorOfStandIn"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  *stream = new CUstream_st(std::random_device()());
  return cudaSuccess;
}
// Returns at once; the stream ends with its work.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::lock_guard lock(ending_mutex);
  ending.emplace_back([stream] { delete stream; });
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) { return stream->is_idle() ? cudaSuccess : cudaErrorNotReady; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  stream->wait_until_idle();
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  stream->add([=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->position = std::make_shared<StreamPosition>();
  stream->add([position = event->position] { position->reach(); });
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (event->position) stream->add([position = event->position] { position->wait(); });
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event->position) event->position->wait();
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  *milliseconds = std::chrono::duration<float, std::milli>(to->position->when() - from->position->when()).count();
  return cudaSuccess;
}

}  // extern "C"
