// Part of a communicator that queues sends and receives between group_start and group_end.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/call.h"
#include "comm/communicator.h"

namespace gptrain::inline comm {

class GatheredTransfers : public Communicator {
 public:
  void send(const void* data, int64_t count, DType dtype, int peer) final {
    transfer({Operation::send, dtype, ReduceOp::sum, peer, count}, data, nullptr);
  }
  void receive(void* data, int64_t count, DType dtype, int peer) final {
    transfer({Operation::receive, dtype, ReduceOp::sum, peer, count}, nullptr, data);
  }
  void group_start() final;
  void group_end() final;

 protected:
  // Queues a transfer. `in` is null for a receive, `out` for a send.
  virtual void add_transfer(const Call& call, const void* in, void* out) = 0;
  // Runs the queued transfers together and empties the queue.
  virtual void run_transfers() = 0;

  // Throws Error(device) if the group cannot do the collective or is between group_start and group_end.
  void check_collective(const Call& call) const;

  static const std::byte* address(const void* data, int64_t element, DType dtype) {
    return static_cast<const std::byte*>(data) + element * dtype_bytes(dtype);
  }
  static std::byte* address(void* data, int64_t element, DType dtype) {
    return static_cast<std::byte*>(data) + element * dtype_bytes(dtype);
  }

 private:
  void transfer(const Call& call, const void* in, void* out);

  bool gathering_ = false;
};

}  // namespace gptrain::comm
