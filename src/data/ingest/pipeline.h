// Reads and encodes in threads, ahead of the thread that writes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "data/ingest/blocks.h"
#include "data/ingest/encode_block.h"

namespace gptrain::inline data {

// One thread reads and decompresses, up to `num_threads` parse and encode, and next() hands out the results in the
// order of the input, whatever the number of threads. At most a few blocks per thread are in memory at once. A thread
// is started when a block waits and all others are busy, so that there are never more threads than blocks.
class IngestPipeline {
 public:
  // Throws Error(machine) if a thread cannot be started; next() throws it for those that are started later. REQUIRES:
  // num_threads > 0; `reader` outlives this and is not used otherwise.
  IngestPipeline(BlockReader& reader, std::shared_ptr<const Tokenizer> tokenizer, const EncodeOptions& options,
                 int num_threads);
  ~IngestPipeline();
  IngestPipeline(const IngestPipeline&) = delete;
  IngestPipeline& operator=(const IngestPipeline&) = delete;

  struct Item {
    TextBlock block;  // without its bytes
    EncodedBlock encoded;
  };
  // Returns the next block; nullopt at the end. Rethrows a thread's Error in the place of its block.
  std::optional<Item> next();
  // Returns an item that is no longer needed; later blocks reuse its memory.
  void give_back(Item item);

 private:
  struct Result {
    Item item;
    std::exception_ptr error;
  };

  void start_encoder();
  void stop();
  void read();
  void encode(BlockEncoder& encoder);
  void put(int64_t number, Result result);

  BlockReader& reader_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  EncodeOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<int64_t, TextBlock>> waiting_;
  std::map<int64_t, Result> done_;
  // Memory to reuse for blocks and tokens. Fresh memory costs as much time as all other work on a block of bytes.
  std::vector<std::string> spare_texts_;
  std::vector<TokenBuffer> spare_tokens_;
  int64_t num_taken_ = 0;    // blocks that next() has given out
  int64_t num_blocks_ = -1;  // number of all blocks; -1: not all are read
  size_t max_encoders_;
  int64_t max_ahead_;
  size_t num_idle_ = 0;  // encoding threads that wait for a block
  bool stopped_ = false;
  std::thread read_thread_;
  std::vector<std::thread>
      encode_threads_;  // REQUIRES: after the constructor only the reading thread uses it, or stop()
};

}  // namespace gptrain::data
