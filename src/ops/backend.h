// A backend runs ops on memory of its device. Model code is written once against this interface.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "ops/ops.h"
#include "ops/target.h"

namespace gptrain {

// Owner of one span of memory that a backend has given: its device's, unless it says another. Taken at start, never in a
// step.
class DeviceMemory {
 public:
  DeviceMemory(void* data, int64_t bytes) : data_(data), bytes_(bytes) {}
  virtual ~DeviceMemory() = default;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  int64_t bytes() const { return bytes_; }

 protected:
  void* data_;
  int64_t bytes_;
};

class SideQueue;

// A linear whose weights lie packed in memory of its own, as a library likes them best.
class PackedLinear {
 public:
  virtual ~PackedLinear() = default;
  // Reads x and writes y, as run(op) does; the operands must still be there.
  virtual void run() = 0;
};

// What a sequence of ops depends on, compared whole: which ops they are, and where their operands lie.
class RecordingKey {
 public:
  RecordingKey() = default;
  explicit RecordingKey(uint64_t word) { add(word); }
  void add(uint64_t word) { words_.at(used_++) = word; }
  void add(const void* address) { add(static_cast<uint64_t>(reinterpret_cast<uintptr_t>(address))); }
  auto operator<=>(const RecordingKey&) const = default;

 private:
  std::array<uint64_t, 24> words_{};
  size_t used_ = 0;
};

// Ops run in the order they are called, on one stream; a call may return before the op has run. `synchronize` waits for
// all of them. One thread calls a backend at a time; a process may hold several backends. Ops never allocate device
// memory: what they need beside their operands is the scratch memory, whose size the plan takes from the footprints (an
// op that finds too little throws Error(device)). Ops check dtypes and shapes and throw std::logic_error on a caller's
// mistake; token ids that are not in the vocabulary, too, where memory is the host's (on a device they contribute
// nothing: whoever reads data checks them). For equal inputs, thread count and machine an op gives equal bits; the three
// linears may differ in rounding between thread counts, everything else does not.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual const Target& target() const = 0;

  // Memory of the device that begins at a multiple of 256 bytes. Contents are undefined. Throws Error(device) when it
  // cannot be had.
  virtual std::unique_ptr<DeviceMemory> allocate(int64_t bytes) = 0;
  // Memory that ops may use while they run. Caller-owned; stays until replaced.
  virtual void set_scratch(std::byte* data, int64_t bytes) = 0;

  // Copies between host and device, ordered with the ops. When a call returns, the host memory of an upload may be
  // reused, and that of a download is filled: a download waits for the ops, an upload does not.
  virtual void upload(void* device, const void* host, int64_t bytes) = 0;
  virtual void download(void* host, const void* device, int64_t bytes) = 0;
  virtual void synchronize() = 0;

  // Runs what `ops` calls, which is ops of this backend and nothing else: no copies, no other key. Those that come again
  // and again with equal operands, as an action's of the schedule do, may be recorded under their key and played at
  // once, as a CUDA graph is, until set_scratch. What cannot be recorded is run each time; take_warnings says why once.
  virtual void run_recorded(const RecordingKey& /*key*/, const std::function<void()>& ops) { ops(); }

  // The algorithms of a library that serve the linears and FP8 products, where they are chosen by timing: they decide
  // speed, and bits. A text for checkpoints and other ranks; empty where there is no choice.
  virtual std::string algorithms() const { return {}; }
  // Takes over another's. Before the first step. What is of another device or library is left, with a warning.
  virtual void use_algorithms(const std::string& /*record*/) {}
  // While it is on, such a product only finds its fastest algorithm, if none is known, and leaves anything in its
  // outputs; all other ops are left out.
  virtual void set_choosing(bool /*choosing*/) {}
  // The op with its weights packed as they are now, in memory that `allocate` gives, and with the scratch memory of now:
  // what a rate of products may be held against. Null where the backend has nothing but run(op).
  using Allocate = std::function<std::unique_ptr<DeviceMemory>(int64_t bytes)>;
  virtual std::unique_ptr<PackedLinear> pack(const LinearForward& /*op*/, const Allocate& /*allocate*/) {
    return nullptr;
  }
  // What the user should be warned of since the last call: lines, mostly none.
  virtual std::string take_warnings() { return {}; }
  // Another queue of the same device (ops/side_queue.h). Null where the device's memory is the host's, which collectives
  // read and write themselves.
  virtual std::unique_ptr<SideQueue> make_side_queue() = 0;

#define GPTRAIN_DECLARE_RUN(Op) virtual void run(const Op& op) = 0;
  GPTRAIN_FOR_EACH_OP(GPTRAIN_DECLARE_RUN)
#undef GPTRAIN_DECLARE_RUN
};

// The CPU backend: oneDNN for matrix products, own kernels (OpenMP, vectorised for the instruction set found at start,
// which ONEDNN_MAX_CPU_ISA caps) for the rest. It has no f16 (std::logic_error). num_threads 0: every core the process
// may use. thread_independent: the linears, too, give the same bits for any number of threads.
std::unique_ptr<Backend> make_cpu_backend(int num_threads, bool thread_independent = false);

// The CUDA backend on device number `device` of those that this process sees: own kernels, cuBLASLt, cuDNN. The calling
// thread uses the device from then on. `algorithm_cache`: as run.algorithm_cache, where the algorithms that are timed
// are kept, and found. Error(device): there is no such device, it is too old, or this build has no CUDA.
std::unique_ptr<Backend> make_cuda_backend(int device, const std::string& algorithm_cache = "auto");
// 0 where there is none, no driver, or a build without CUDA.
int num_cuda_devices();
// What plans of such a backend are made for, without taking the device. Errors as above.
Target cuda_target(int device);

}  // namespace gptrain
