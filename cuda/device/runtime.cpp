#include "runtime.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cuda_runtime.h>
#include <fmt/format.h>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/units.h"
#include "device/status.h"
#include "device/upload_ring.h"
#include "ops/cuda_devices.h"
#include "ops/target.h"

namespace gptrain::inline cuda {
namespace {

// Lowest compute capability for which kernels are compiled.
constexpr int least_major = 8;

// Functions to call while the host waits for the device, each with its side queue. Used by the thread that calls the
// backend.
using Checks = std::vector<std::pair<const SideQueue*, std::function<void()>>>;

// Waits until `query` reports that the device is ready, calling the checks meanwhile; without checks, waits by `wait`.
template <typename Wait, typename Query>
void wait_for(const Checks& checks, const Wait& wait, const Query& query) {
  using Clock = std::chrono::steady_clock;
  constexpr auto interval = std::chrono::milliseconds(1);  // between checks
  const char* const what = "waiting for the device";
  if (checks.empty()) return check_cuda(wait(), what);
  auto checked_at = Clock::now();
  for (;;) {
    const cudaError_t status = query();
    if (status != cudaErrorNotReady) return check_cuda(status, what);
    if (Clock::now() - checked_at >= interval) {
      for (const auto& [queue, check] : checks) check();
      checked_at = Clock::now();
    }
    std::this_thread::yield();
  }
}

void wait_for_event(const Checks& checks, cudaEvent_t event) {
  wait_for(
      checks, [=] { return cudaEventSynchronize(event); }, [=] { return cudaEventQuery(event); });
}

class CudaMemory final : public DeviceMemory {
 public:
  using DeviceMemory::DeviceMemory;
  // Ignores errors: an earlier call has thrown them.
  ~CudaMemory() override { cudaFree(data_); }
};

class CudaGraph final : public LaunchGraph {
 public:
  CudaGraph(cudaGraph_t graph, Stream stream) : stream_(stream) {
    const cudaError_t status = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    if (status != cudaSuccess) cudaGetLastError();
    check_cuda(status, "making a CUDA graph");
  }
  ~CudaGraph() override { cudaGraphExecDestroy(executable_); }
  void launch() override { check_cuda(cudaGraphLaunch(executable_, stream_), "starting a CUDA graph"); }

 private:
  cudaGraphExec_t executable_ = nullptr;
  Stream stream_;
};

struct MemoryNow {
  size_t free, total;  // bytes
};

MemoryNow memory_now() {
  MemoryNow now{};
  check_cuda(cudaMemGetInfo(&now.free, &now.total), "asking for free memory");
  return now;
}

class CudaRuntime final : public Runtime {
 public:
  explicit CudaRuntime(int device);
  ~CudaRuntime() override;

  const Target& target() const override { return target_; }
  Stream stream() const override { return stream_; }
  std::unique_ptr<DeviceMemory> allocate(int64_t bytes) override;
  int64_t free_bytes() const override { return static_cast<int64_t>(memory_now().free); }
  void upload(void* device, const void* host, int64_t bytes) override;
  void download(void* host, const void* device, int64_t bytes) override;
  void synchronize() override;
  void begin_capture() override;
  std::unique_ptr<LaunchGraph> end_capture() override;
  std::unique_ptr<SideQueue> make_side_queue() override;

 private:
  const int device_;
  Target target_;
  Stream stream_ = nullptr;
  std::optional<UploadRing> uploads_;  // created once the device is current in this thread
  const std::shared_ptr<Checks> checks_ = std::make_shared<Checks>();  // checks of the side queues
};

class PinnedMemory final : public DeviceMemory {
 public:
  using DeviceMemory::DeviceMemory;
  ~PinnedMemory() override { cudaFreeHost(data_); }
};

class CudaSideQueue final : public SideQueue {
 public:
  CudaSideQueue(int device, Stream ops, std::shared_ptr<Checks> checks);
  ~CudaSideQueue() override;

  void mark_ops(int mark) override {
    check_cuda(cudaEventRecord(ops_at_[static_cast<size_t>(mark)], ops_), "marking the ops of a stream");
  }
  void follow_ops(int mark) override;
  void mark_work(int mark) override {
    check_cuda(cudaEventRecord(work_at_[static_cast<size_t>(mark)], stream_), "marking the work of a stream");
  }
  void ops_follow(int mark) override {
    check_cuda(cudaStreamWaitEvent(ops_, work_at_[static_cast<size_t>(mark)]), "waiting for the work of a stream");
  }
  void await_ops(int mark) override { wait_for_event(*checks_, ops_at_[static_cast<size_t>(mark)]); }
  void await_work(int mark) override { wait_for_event(*checks_, work_at_[static_cast<size_t>(mark)]); }
  void finish_work(int mark) override {
    check_cuda(cudaEventSynchronize(work_at_[static_cast<size_t>(mark)]), "waiting for the work of a stream");
  }
  void time_ops(int time) override {
    check_cuda(cudaEventRecord(times_[static_cast<size_t>(time)], ops_), "marking a time of a stream");
  }
  double seconds_between(int from, int to) override;
  void* handle() const override { return stream_; }
  void while_waiting(std::function<void()> check) override { checks_->emplace_back(this, std::move(check)); }
  void upload(void* device, const void* host, int64_t bytes) override {
    copy(device, host, bytes, cudaMemcpyHostToDevice);
  }
  void download(void* host, const void* device, int64_t bytes) override {
    copy(host, device, bytes, cudaMemcpyDeviceToHost);
  }
  void queue_upload(void* device, const void* host, int64_t bytes) override {
    queue_copy(device, host, bytes, cudaMemcpyHostToDevice, stream_);
  }
  void queue_download(void* host, const void* device, int64_t bytes) override {
    queue_copy(host, device, bytes, cudaMemcpyDeviceToHost, stream_);
  }
  void copy_among_ops(void* to, const void* from, int64_t bytes) override {
    queue_copy(to, from, bytes, cudaMemcpyDefault, ops_);
  }
  std::unique_ptr<DeviceMemory> allocate_host(int64_t bytes) override;

 private:
  static void queue_copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind, Stream stream);
  void copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind);

  const int device_;
  const Stream ops_;
  Stream stream_ = nullptr;
  const std::shared_ptr<Checks> checks_;
  std::array<cudaEvent_t, num_marks> ops_at_{}, work_at_{};
  std::array<cudaEvent_t, num_times> times_{};
};

CudaSideQueue::CudaSideQueue(int device, Stream ops, std::shared_ptr<Checks> checks)
    : device_(device), ops_(ops), checks_(std::move(checks)) {
  // Highest priority: copies and transfers are short, and other ranks or later ops wait for them.
  int least = 0, greatest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities of streams");
  check_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), "making a stream beside the ops");
  for (auto* const events : {&ops_at_, &work_at_}) {
    for (cudaEvent_t& event : *events)
      check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
  }
  for (cudaEvent_t& event : times_) check_cuda(cudaEventCreate(&event), "making an event");
}

CudaSideQueue::~CudaSideQueue() {
  std::erase_if(*checks_, [this](const auto& check) { return check.first == this; });
  for (auto* const events : {&ops_at_, &work_at_}) {
    for (const cudaEvent_t event : *events) cudaEventDestroy(event);
  }
  for (const cudaEvent_t event : times_) cudaEventDestroy(event);
  cudaStreamDestroy(stream_);
}

// Sets the device first: the current device is a property of the thread, and this is a thread's first call here.
void CudaSideQueue::follow_ops(int mark) {
  check_cuda(cudaSetDevice(device_), "taking the device");
  check_cuda(cudaStreamWaitEvent(stream_, ops_at_[static_cast<size_t>(mark)]), "waiting for the ops of a stream");
}

double CudaSideQueue::seconds_between(int from, int to) {
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, times_[static_cast<size_t>(from)], times_[static_cast<size_t>(to)]),
             "timing a stream");
  return milliseconds * 1e-3;
}

void CudaSideQueue::queue_copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind, Stream stream) {
  if (bytes == 0) return;
  check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream), "copying beside the ops");
}

void CudaSideQueue::copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind) {
  queue_copy(to, from, bytes, kind, stream_);
  check_cuda(cudaStreamSynchronize(stream_), "waiting for a copy");
}

std::unique_ptr<DeviceMemory> CudaSideQueue::allocate_host(int64_t bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaMallocHost(&data, static_cast<size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears the error, as in CudaRuntime::allocate
    throw cannot_pin(bytes);
  }
  check_cuda(status, "allocating pinned host memory");
  return std::make_unique<PinnedMemory>(data, bytes);
}

CudaRuntime::CudaRuntime(int device) : device_(device), target_(cuda_target(device)) {
  check_cuda(cudaSetDevice(device), "taking the device");
  // A non-blocking stream: the default stream would wait for all others.
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
  uploads_.emplace();
}

CudaRuntime::~CudaRuntime() { cudaStreamDestroy(stream_); }

std::unique_ptr<DeviceMemory> CudaRuntime::allocate(int64_t bytes) {
  if (bytes == 0) return std::make_unique<CudaMemory>(nullptr, 0);
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, static_cast<size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears the error: the device is sound, and the exception reports it
    const auto [free, total] = memory_now();
    throw Error(ExitCode::machine, "cannot allocate {} on {}: {} of {} are free",
                format_bytes(static_cast<double>(bytes)), target_.name, format_bytes(static_cast<double>(free)),
                format_bytes(static_cast<double>(total)));
  }
  check_cuda(status, "allocating device memory");
  return std::make_unique<CudaMemory>(data, bytes);
}

void CudaRuntime::upload(void* device, const void* host, int64_t bytes) {
  uploads_->upload(device, host, bytes, stream_, [this](cudaEvent_t left) { wait_for_event(*checks_, left); });
}

void CudaRuntime::download(void* host, const void* device, int64_t bytes) {
  if (bytes == 0) return;
  // cudaMemcpyAsync into pageable memory blocks until earlier work is done. Waits here instead, where checks run.
  if (!checks_->empty()) synchronize();
  check_cuda(cudaMemcpyAsync(host, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_),
             "copying from the device");
  synchronize();
}

std::unique_ptr<SideQueue> CudaRuntime::make_side_queue() {
  return std::make_unique<CudaSideQueue>(device_, stream_, checks_);
}

void CudaRuntime::synchronize() {
  wait_for(
      *checks_, [this] { return cudaStreamSynchronize(stream_); }, [this] { return cudaStreamQuery(stream_); });
}

void CudaRuntime::begin_capture() {
  check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capturing a CUDA graph");
}

std::unique_ptr<LaunchGraph> CudaRuntime::end_capture() {
  cudaGraph_t graph = nullptr;
  const cudaError_t status = cudaStreamEndCapture(stream_, &graph);
  // Clears an error of the capture, which would otherwise be reported by the next launch's check.
  cudaGetLastError();
  check_cuda(status, "capturing a CUDA graph");
  return std::make_unique<CudaGraph>(graph, stream_);
}

}  // namespace

std::unique_ptr<Runtime> make_runtime(int device) { return std::make_unique<CudaRuntime>(device); }

}  // namespace gptrain::cuda

namespace gptrain::inline ops {

int num_cuda_devices() {
  int count = 0;
  // Returns 0 without a driver or with one that is too old.
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

std::string why_no_cuda_device() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaGetLastError();
  return fmt::format("this process sees no CUDA device ({})",
                     status == cudaSuccess ? "CUDA_VISIBLE_DEVICES may hide them" : cudaGetErrorString(status));
}

Target cuda_target(int device) {
  int count = 0;
  check_cuda(cudaGetDeviceCount(&count), "looking for CUDA devices");
  if (device < 0 || device >= count)
    throw Error(ExitCode::machine, "there is no CUDA device {}: this process sees {}", device, count);
  cudaDeviceProp properties;
  check_cuda(cudaGetDeviceProperties(&properties, device), "asking what the device is");
  if (properties.major < least_major) {
    throw Error(ExitCode::machine, "device {} is a {} of compute capability {}.{}; gptrain needs {}.0 or later", device,
                properties.name, properties.major, properties.minor, least_major);
  }
  Target target;
  target.name = properties.name;
  for (const char byte : properties.uuid.bytes)
    target.identity += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  target.kind = Target::Kind::gpu;
  target.memory_bytes = planned_part_of_gpu(static_cast<int64_t>(properties.totalGlobalMem));
  target.host_bytes = this_machine(1).memory_bytes;
  target.compute_capability = properties.major + properties.minor / 10.0;
  target.fp8_products = properties.major > 8 || (properties.major == 8 && properties.minor >= 9);
  return target;
}

}  // namespace gptrain::ops
