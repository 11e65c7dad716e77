// Backend: runs ops on the memory of one device. Model code is written once against this interface.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include "ops/ops.h"
#include "ops/target.h"

namespace gptrain::inline ops {

// Owner of one span of memory that a backend allocated, on its device unless the allocating function says otherwise.
// Allocated at start, never during a step.
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

// A linear whose weights were copied into memory of its own, in the layout that the library multiplies fastest.
class PackedLinear {
 public:
  virtual ~PackedLinear() = default;
  // Reads x and writes y, as run(op) does. REQUIRES: the op's operands are still allocated.
  virtual void run() = 0;
};

// Key of a sequence of ops: numbers and addresses that identify the ops and their operands. Two keys are equal if they
// have equally many words and all words are equal.
class RecordingKey {
 public:
  static constexpr size_t capacity = 32;

  template <typename... Words>
  explicit RecordingKey(Words... words) : words_{word_of(words)...}, used_(sizeof...(words)) {
    static_assert(sizeof...(words) <= capacity,
                  "raise the capacity: a key must name everything that its ops depend on");
  }
  auto operator<=>(const RecordingKey&) const = default;

 private:
  template <typename Word>
  static uint64_t word_of(Word word) {
    if constexpr (std::is_pointer_v<Word>) {
      return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(word));
    } else {
      return static_cast<uint64_t>(word);
    }
  }

  std::array<uint64_t, capacity> words_{};
  size_t used_ = 0;
};

// Ops run in the order of the calls, on one stream; a call may return before the op has run. `synchronize` waits for
// all of them. REQUIRES: one thread calls a backend at a time; a process may hold several backends. Ops never allocate
// device memory: beside their operands they use the scratch memory, whose size the plan takes from the footprints.
// THROWS Error(device) if it is too small; std::logic_error if dtypes or shapes are wrong, and on a CPU if a token id
// is outside the vocabulary (on a GPU such a token contributes nothing; the data reader checks ids). For equal inputs,
// thread count and machine an op gives equal bits. Only the three linears may round differently with another thread
// count.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual const Target& target() const = 0;

  // RETURNS device memory that begins at a multiple of 256 bytes, contents undefined. THROWS Error(machine) if there is
  // not enough.
  virtual std::unique_ptr<DeviceMemory> allocate(int64_t bytes) = 0;
  // RETURNS the bytes of the device that are free now; on a CPU, the bytes that plans may use.
  virtual int64_t free_bytes() const { return target().memory_bytes; }
  // Sets the memory that ops may use while they run, until the next call. The caller owns it.
  virtual void set_scratch(std::byte* data, int64_t bytes) = 0;

  // Copies between host and device, ordered with the ops. When `upload` returns, `host` may be reused, though ops may
  // still be running. `download` waits for the ops, and returns with `host` filled.
  virtual void upload(void* device, const void* host, int64_t bytes) = 0;
  virtual void download(void* host, const void* device, int64_t bytes) = 0;
  virtual void synchronize() = 0;

  // Runs the ops that `ops` calls. REQUIRES: `ops` only runs ops of this backend, without copies or nested
  // run_recorded, and equal keys mean equal ops on equal operands. The backend may record the ops under the key and
  // replay them at the next call with that key, as a CUDA graph; set_scratch discards all records. Ops that cannot be
  // recorded run normally every time, and take_warnings says why once.
  virtual void run_recorded(const RecordingKey& /*key*/, const std::function<void()>& ops) { ops(); }

  // RETURNS the library algorithms chosen by timing for the linears and FP8 products, as a text for checkpoints and
  // other ranks; empty if the backend offers no choice. They decide speed, and the bits of results.
  virtual std::string algorithms() const { return {}; }
  // Uses the algorithms that another backend's algorithms() returned. Ignores, with a warning, a record of another
  // device or library version. REQUIRES: called before the first step.
  virtual void use_algorithms(const std::string& /*record*/) {}
  // While on, a linear or FP8 product only times its algorithms, if none is chosen yet, and leaves its outputs
  // undefined. All other ops, and `download`, do nothing: there are no results.
  virtual void set_choosing(bool /*choosing*/) {}
  // RETURNS the op with its present weights packed into memory from `allocate`, using the present scratch memory; null
  // if the backend only has run(op). The machine's rate of products is measured with the faster of it and run(op).
  using Allocate = std::function<std::unique_ptr<DeviceMemory>(int64_t bytes)>;
  virtual std::unique_ptr<PackedLinear> pack(const LinearForward& /*op*/, const Allocate& /*allocate*/) {
    return nullptr;
  }
  // RETURNS warnings for the user since the last call, one per line; empty if there are none.
  virtual std::string take_warnings() { return {}; }
  // RETURNS another queue of the same device (ops/side_queue.h), or null on a CPU, where collectives read and write the
  // memory themselves.
  virtual std::unique_ptr<SideQueue> make_side_queue() = 0;

#define GPTRAIN_DECLARE_RUN(Op) virtual void run(const Op& op) = 0;
  GPTRAIN_FOR_EACH_OP(GPTRAIN_DECLARE_RUN)
#undef GPTRAIN_DECLARE_RUN
};

// Whether the CPU backend's op supports f16: updates beside a GPU do.
template <typename Op>
constexpr bool has_f16_on_cpu = std::is_base_of_v<ElementUpdate, Op> || std::is_same_v<Op, Cast>;

// RETURNS the CPU backend: oneDNN for matrix products, own kernels for the rest (OpenMP, vectorised for the instruction
// set found at start, which ONEDNN_MAX_CPU_ISA caps). It has f16 (else std::logic_error) only for has_f16_on_cpu.
// num_threads 0: every core that the process may use. thread_independent: the linears, too, give the same bits for any
// number of threads.
std::unique_ptr<Backend> make_cpu_backend(int num_threads, bool thread_independent = false);

// RETURNS the CUDA backend (own kernels, cuBLASLt, cuDNN) on device number `device` of the devices that this process
// sees, and makes that the calling thread's current device. `algorithm_cache` is the key run.algorithm_cache: where
// timed algorithms are stored and looked up. THROWS Error(machine) if there is no such device, it is too old, or this
// build has no CUDA.
std::unique_ptr<Backend> make_cuda_backend(int device, const std::string& algorithm_cache = "auto");
// RETURNS 0 if there is no device, no driver, or no CUDA in this build.
int num_cuda_devices();
// RETURNS the target that plans for this CUDA device use, without creating a backend on it. THROWS as
// make_cuda_backend.
Target cuda_target(int device);

}  // namespace gptrain::ops
