// Threads that read and encode ahead of the one that writes.
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

namespace gptrain {

// One thread reads and decompresses, `num_threads` parse and encode, and next() hands out the results in the order of
// the input, whatever the number of threads. At most a few blocks a thread are in memory at once.
class IngestPipeline {
 public:
  // Throws Error(device) where a thread cannot be started. `reader` is borrowed, and belongs to the pipeline meanwhile.
  IngestPipeline(BlockReader& reader, std::shared_ptr<const Tokenizer> tokenizer, const EncodeOptions& options,
                 int num_threads);
  ~IngestPipeline();
  IngestPipeline(const IngestPipeline&) = delete;
  IngestPipeline& operator=(const IngestPipeline&) = delete;

  struct Item {
    TextBlock block;  // without its bytes
    EncodedBlock encoded;
  };
  // The next block; none at the end. An Error of a thread is thrown where its block would have come.
  std::optional<Item> next();
  // Later blocks use the memory of an item that is done with.
  void give_back(Item item);

 private:
  struct Result {
    Item item;
    std::exception_ptr error;
  };

  void stop();
  void read();
  void encode(BlockEncoder& encoder);
  void put(int64_t number, Result result);

  BlockReader& reader_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<int64_t, TextBlock>> waiting_;
  std::map<int64_t, Result> done_;
  // Memory for blocks and tokens: fresh memory costs as much as all that is done with a block of bytes.
  std::vector<std::string> spare_texts_;
  std::vector<TokenBuffer> spare_tokens_;
  int64_t num_taken_ = 0;    // blocks that next() has given out
  int64_t num_blocks_ = -1;  // once all are read
  int64_t max_ahead_;
  bool stopped_ = false;
  std::vector<std::unique_ptr<BlockEncoder>> encoders_;
  std::vector<std::thread> threads_;
};

}  // namespace gptrain
