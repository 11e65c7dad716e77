// Devices of the host harness, in this machine's memory. The harness varies the order of a block's threads and the
// time when queued work runs, which must not affect any result.
#include "runtime.h"

#include <array>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "host/device_memory.h"
#include "host/device_queues.h"
#include "host/recording.h"
#include "ops/cuda_devices.h"

namespace gptrain::inline cuda {
namespace {

constexpr int num_devices = 8;

using Device = std::shared_ptr<simt::DeviceQueues>;

void copy(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

// Throws for calls that CUDA refuses, or would wrongly capture, in a thread that is capturing.
void require_no_capture(const char* call) {
  if (simt::recording()) throw std::logic_error(std::string(call) + " amid a capture");
}

void queue_copy(simt::DeviceQueues& device, int queue, void* to, const void* from, int64_t bytes) {
  require_no_capture("a copy");
  device.add(queue, [=] { copy(to, from, bytes); });
}

// Runs all queued work before memory and queues are freed.
void bring_to_rest(simt::DeviceQueues& device) {
  try {
    device.run_all();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "work of a device failed as it was brought to rest: %s\n", error.what());
  }
}

class HostMemory final : public DeviceMemory {
 public:
  HostMemory(int64_t bytes, Device device)
      : DeviceMemory(bytes > 0 ? simt::take_pages(static_cast<size_t>(bytes)) : nullptr, bytes),
        device_(std::move(device)) {}
  ~HostMemory() override {
    bring_to_rest(*device_);
    if (data_ != nullptr) simt::give_back_pages(data_, static_cast<size_t>(bytes_));
  }

 private:
  const Device device_;
};

class HostGraph final : public LaunchGraph {
 public:
  HostGraph(Device device, std::vector<simt::Work> work)
      : device_(std::move(device)), work_(std::make_shared<std::vector<simt::Work>>(std::move(work))) {}
  void launch() override {
    device_->add(simt::DeviceQueues::ops, [work = work_] {
      for (const simt::Work& each : *work) each();
    });
  }

 private:
  const Device device_;
  const std::shared_ptr<std::vector<simt::Work>> work_;
};

class HostSideQueue final : public SideQueue {
 public:
  explicit HostSideQueue(Device device) : device_(std::move(device)), queue_(device_->add_queue()) {}
  ~HostSideQueue() override {
    bring_to_rest(*device_);
    device_->remove_queue(queue_);
  }

  void mark_ops(int mark) override {
    require_no_capture("a mark of ops");
    at(ops_at_, mark) = device_->mark(simt::DeviceQueues::ops);
  }
  void follow_ops(int mark) override { device_->follow(queue_, at(ops_at_, mark)); }
  void mark_work(int mark) override { at(work_at_, mark) = device_->mark(queue_); }
  void ops_follow(int mark) override {
    require_no_capture("ops that follow others");
    device_->follow(simt::DeviceQueues::ops, at(work_at_, mark));
  }
  void await_ops(int mark) override {
    require_no_capture("a wait");
    device_->wait(at(ops_at_, mark));
  }
  void await_work(int mark) override {
    require_no_capture("a wait");
    device_->wait(at(work_at_, mark));
  }
  void finish_work(int mark) override { device_->wait(at(work_at_, mark)); }
  void time_ops(int time) override {
    require_no_capture("a mark of ops");
    times_[static_cast<size_t>(time)] = device_->mark(simt::DeviceQueues::ops);
  }
  double seconds_between(int from, int to) override {
    return device_->seconds_between(times_[static_cast<size_t>(from)], times_[static_cast<size_t>(to)]);
  }
  void* handle() const override { return nullptr; }
  void while_waiting(std::function<void()>) override {}
  void upload(void* device, const void* host, int64_t bytes) override {
    queue_upload(device, host, bytes);
    device_->wait(device_->mark(queue_));
  }
  void download(void* host, const void* device, int64_t bytes) override {
    queue_download(host, device, bytes);
    device_->wait(device_->mark(queue_));
  }
  void queue_upload(void* device, const void* host, int64_t bytes) override {
    queue_copy(*device_, queue_, device, host, bytes);
  }
  void queue_download(void* host, const void* device, int64_t bytes) override {
    queue_copy(*device_, queue_, host, device, bytes);
  }
  void copy_among_ops(void* to, const void* from, int64_t bytes) override {
    queue_copy(*device_, simt::DeviceQueues::ops, to, from, bytes);
  }
  std::unique_ptr<DeviceMemory> allocate_host(int64_t bytes) override {
    if (bytes > this_machine(1).memory_bytes) throw cannot_pin(bytes);
    return std::make_unique<PinnedMemory>(bytes, device_);
  }

 private:
  using Marks = std::array<simt::Mark, num_marks>;

  class PinnedMemory final : public DeviceMemory {
   public:
    PinnedMemory(int64_t bytes, Device device)
        : DeviceMemory(::operator new(static_cast<size_t>(bytes), page), bytes), device_(std::move(device)) {}
    ~PinnedMemory() override {
      bring_to_rest(*device_);
      ::operator delete(data_, page);
    }

   private:
    static constexpr std::align_val_t page{4096};  // as pinned memory of a device begins

    const Device device_;
  };

  static simt::Mark& at(Marks& marks, int mark) { return marks[static_cast<size_t>(mark)]; }

  const Device device_;
  const int queue_;
  Marks ops_at_, work_at_;
  std::array<simt::Mark, num_times> times_;
};

class HostRuntime final : public Runtime {
 public:
  explicit HostRuntime(int device)
      : target_(cuda_target(device)),
        device_(std::make_shared<simt::DeviceQueues>(static_cast<uint64_t>(device) + 1)),
        stream_{static_cast<uint64_t>(device) + 1, device_.get(), simt::DeviceQueues::ops} {}
  // Drops work that was never waited for: it refers to freed objects.
  ~HostRuntime() override { device_->drop_all(); }

  const Target& target() const override { return target_; }
  Stream stream() const override { return stream_; }
  std::unique_ptr<DeviceMemory> allocate(int64_t bytes) override {
    require_no_capture("memory that is taken");
    return std::make_unique<HostMemory>(bytes, device_);
  }
  int64_t free_bytes() const override { return target_.memory_bytes; }
  void upload(void* device, const void* host, int64_t bytes) override {
    require_no_capture("a copy");
    const auto* const first = static_cast<const std::byte*>(host);
    device_->add(simt::DeviceQueues::ops, [device, bytes_copied = std::vector<std::byte>(first, first + bytes)] {
      copy(device, bytes_copied.data(), static_cast<int64_t>(bytes_copied.size()));
    });
  }
  void download(void* host, const void* device, int64_t bytes) override {
    queue_copy(*device_, simt::DeviceQueues::ops, host, device, bytes);
    synchronize();
  }
  void synchronize() override {
    require_no_capture("a wait");
    device_->wait(device_->mark(simt::DeviceQueues::ops));
  }
  std::unique_ptr<SideQueue> make_side_queue() override { return std::make_unique<HostSideQueue>(device_); }
  void begin_capture() override {
    require_no_capture("a capture");
    simt::begin_recording();
  }
  std::unique_ptr<LaunchGraph> end_capture() override {
    if (!simt::recording()) throw Error(ExitCode::device, "no capture has begun");
    return std::make_unique<HostGraph>(device_, simt::end_recording());
  }

 private:
  const Target target_;
  const Device device_;
  const Stream stream_;
};

}  // namespace

std::unique_ptr<Runtime> make_runtime(int device) { return std::make_unique<HostRuntime>(device); }

}  // namespace gptrain::cuda

namespace gptrain::inline ops {

int num_cuda_devices() { return num_devices; }

std::string why_no_cuda_device() { return "this process sees no CUDA device"; }

Target cuda_target(int device) {
  if (device < 0 || device >= num_devices)
    throw Error(ExitCode::machine, "there is no CUDA device {}: this machine has {}", device, num_devices);
  Target target;
  target.name = "host-harness";
  target.identity = std::to_string(device);
  target.kind = Target::Kind::gpu;
  target.memory_bytes = target.host_bytes = this_machine(1).memory_bytes;
  target.compute_capability = 9;
  target.fp8_products = true;
  return target;
}

}  // namespace gptrain::ops
