// Collectives over one group of ranks, on device memory of the rank's backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "comm/reduce_op.h"

namespace gptrain {

// A rank needs another that has left: the consequence of what happened there.
class PeerGone : public Error {
 public:
  explicit PeerGone(const std::string& message) : Error(ExitCode::device, message) {}
};

// Elements [first, first + count) of a buffer: what one peer sends or is sent. count >= 0.
struct PeerPart {
  int64_t first = 0;
  int64_t count = 0;
};

// One rank's handle on one group. Every rank of the group calls the same operations in the same order with the same
// counts; a rank's calls come from one thread. Buffers are caller-owned and must not overlap unless `in` and `out` are
// said to be the same. Calls are ordered with each other; `synchronize` waits for them. Sums run in rank order, in f32
// for bf16 and f16 (rounded once) and in the element type for others, so every rank gets the same bits, run after run.
// A peer that fails or disagrees on count or type: Error(device) on every rank of the group. Nothing is buffered: a
// send may wait until its receive is called, and a call until all ranks have called it.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // data[i] = reduction over ranks, in place.
  virtual void all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) = 0;
  // out[0, count) = this rank's piece of the reduction of in[0, size * count).
  virtual void reduce_scatter(const void* in, void* out, int64_t count, DType dtype, ReduceOp op) = 0;
  // out[r * count, (r + 1) * count) = in of rank r. `in` may be its own place in out.
  virtual void all_gather(const void* in, void* out, int64_t count, DType dtype) = 0;
  // out[r * count ...] = in[rank * count ...] of rank r.
  virtual void all_to_all(const void* in, void* out, int64_t count, DType dtype) = 0;
  // out[received[r]] = in[sent[rank]] of rank r. One part for each rank; what a rank sends another has the length that
  // the other receives. Parts may be empty and in any order; those of `out` do not overlap.
  virtual void all_to_all_v(const void* in, std::span<const PeerPart> sent, void* out,
                            std::span<const PeerPart> received, DType dtype) = 0;
  virtual void broadcast(void* data, int64_t count, DType dtype, int root) = 0;
  // A send returns once `data` may be reused, a receive once it is filled. Between group_start and group_end they only
  // gather; group_end runs them together, so that ranks may exchange without an order.
  virtual void send(const void* data, int64_t count, DType dtype, int peer) = 0;
  virtual void receive(void* data, int64_t count, DType dtype, int peer) = 0;
  virtual void group_start() = 0;
  virtual void group_end() = 0;
  virtual void barrier() = 0;
  virtual void synchronize() = 0;

  // From any thread: this rank gives the group up. Its call that waits, and every later one, fails with Error(device),
  // and peers learn that it is gone. Where calls only queue work there is nothing to end.
  virtual void abort() = 0;
};

// A group whose ranks are threads of this process: element r is rank r's handle. The group lives as long as any handle.
// size >= 1; a group of one moves nothing. A handle belongs in its thread: destroying it tells the peers that the rank
// is gone, and whoever still needs it gets PeerGone, or Error(device) when every rank waits, instead of waiting for
// ever.
std::vector<std::unique_ptr<Communicator>> make_local_group(int size);

}  // namespace gptrain
