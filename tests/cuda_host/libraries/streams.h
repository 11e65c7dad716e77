// Streams and events of CUDA's runtime without a device: each stream is a thread of this process, which runs the
// stream's work in order while other streams and the host go on.
//
// streams.cpp defines the functions of the runtime that cuda/device/ calls, with the signatures of CUDA's header, so
// code for devices is linked with it in place of CUDA's library.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cuda_runtime.h>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

// Thread-safe. The destructor waits for the work, as nothing that the work uses may outlive it.
struct CUstream_st {
 public:
  explicit CUstream_st(uint64_t seed);
  ~CUstream_st();
  CUstream_st(const CUstream_st&) = delete;
  CUstream_st& operator=(const CUstream_st&) = delete;

  void add(std::function<void()> work);
  bool is_idle();
  void wait_until_idle();

 private:
  void run();

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;  // the first one is running
  bool ends_ = false;
  std::mt19937_64 random_;  // used by the thread alone
  std::thread thread_;
};

// A position in a stream that has been reached or not.
class StreamPosition {
 public:
  void reach();
  void wait();
  // REQUIRES: reached.
  std::chrono::steady_clock::time_point when() const { return when_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
  std::chrono::steady_clock::time_point when_;
};

struct CUevent_st {
  std::shared_ptr<StreamPosition> position;  // null: never recorded
};

// Waits for the work of all streams that cudaStreamDestroy was called for.
void wait_for_destroyed_streams();
