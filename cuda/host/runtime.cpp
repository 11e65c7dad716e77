// The host harness's devices: this machine's memory. They differ in the order in which a block's threads run, which
// must not show in any result.
#include "runtime.h"

#include <cstring>
#include <stdexcept>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "host/device_memory.h"
#include "host/recording.h"

namespace gptrain {
namespace {

constexpr int num_devices = 8;

void copy(void* to, const void* from, int64_t bytes) {
  const simt::DeviceAccess access;
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

class HostMemory final : public DeviceMemory {
 public:
  explicit HostMemory(int64_t bytes)
      : DeviceMemory(bytes > 0 ? simt::take_pages(static_cast<size_t>(bytes)) : nullptr, bytes) {}
  ~HostMemory() override {
    if (data_ != nullptr) simt::give_back_pages(data_, static_cast<size_t>(bytes_));
  }
};

class HostGraph final : public LaunchGraph {
 public:
  explicit HostGraph(std::vector<simt::Work> work) : work_(std::move(work)) {}
  void launch() override {
    for (const simt::Work& work : work_) work();
  }

 private:
  std::vector<simt::Work> work_;
};

void refuse_while_recording() {
  if (simt::recording()) throw std::logic_error("a copy cannot be captured");
}

// Ops have run when their calls return, so there is nothing to follow.
class HostSideQueue final : public SideQueue {
 public:
  void mark_ops(int) override {}
  void follow_ops(int) override {}
  void mark_work(int) override {}
  void ops_follow(int) override {}
  void* handle() const override { return nullptr; }
  void while_waiting(std::function<void()>) override {}
  void upload(void* device, const void* host, int64_t bytes) override { copy(device, host, bytes); }
  void download(void* host, const void* device, int64_t bytes) override { copy(host, device, bytes); }
  std::unique_ptr<DeviceMemory> allocate_host(int64_t bytes) override { return std::make_unique<PinnedMemory>(bytes); }

 private:
  class PinnedMemory final : public DeviceMemory {
   public:
    explicit PinnedMemory(int64_t bytes) : DeviceMemory(::operator new(static_cast<size_t>(bytes)), bytes) {}
    ~PinnedMemory() override { ::operator delete(data_); }
  };
};

class HostRuntime final : public Runtime {
 public:
  explicit HostRuntime(int device) : target_(cuda_target(device)), stream_{static_cast<uint64_t>(device) + 1} {}

  const Target& target() const override { return target_; }
  Stream stream() const override { return stream_; }
  std::unique_ptr<DeviceMemory> allocate(int64_t bytes) override { return std::make_unique<HostMemory>(bytes); }
  void upload(void* device, const void* host, int64_t bytes) override {
    refuse_while_recording();
    copy(device, host, bytes);
  }
  void download(void* host, const void* device, int64_t bytes) override {
    refuse_while_recording();
    copy(host, device, bytes);
  }
  void synchronize() override {}
  std::unique_ptr<SideQueue> make_side_queue() override { return std::make_unique<HostSideQueue>(); }
  void begin_capture() override { simt::begin_recording(); }
  std::unique_ptr<LaunchGraph> end_capture() override { return std::make_unique<HostGraph>(simt::end_recording()); }

 private:
  Target target_;
  Stream stream_;
};

}  // namespace

int num_cuda_devices() { return num_devices; }

Target cuda_target(int device) {
  if (device < 0 || device >= num_devices)
    throw Error(ExitCode::device, "there is no CUDA device {}: this machine has {}", device, num_devices);
  Target target;
  target.name = "host-harness";
  target.identity = std::to_string(device);
  target.kind = Target::Kind::gpu;
  target.memory_bytes = this_machine(1).memory_bytes;
  target.fp8_products = true;
  return target;
}

std::unique_ptr<Runtime> make_runtime(int device) { return std::make_unique<HostRuntime>(device); }

}  // namespace gptrain
