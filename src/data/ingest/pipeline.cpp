#include "data/ingest/pipeline.h"

#include <algorithm>
#include <utility>

#include "base/thread.h"

namespace gptrain::inline data {
namespace {

// Returns a spare object, or a new one if none is left.
template <typename T>
T take_spare(std::vector<T>& spare) {
  if (spare.empty()) return {};
  T taken = std::move(spare.back());
  spare.pop_back();
  return taken;
}

}  // namespace

IngestPipeline::IngestPipeline(BlockReader& reader, std::shared_ptr<const Tokenizer> tokenizer,
                               const EncodeOptions& options, int num_threads)
    : reader_(reader),
      tokenizer_(std::move(tokenizer)),
      options_(options),
      max_encoders_(static_cast<size_t>(num_threads)),
      max_ahead_(2 * int64_t{num_threads} + 2) {
  start_encoder();
  try {
    read_thread_ = start_thread("reads the input", [this] { read(); });
  } catch (...) {
    stop();
    throw;
  }
}

void IngestPipeline::start_encoder() {
  const auto encoder = std::make_shared<BlockEncoder>(tokenizer_, options_);
  encode_threads_.push_back(start_thread("encodes the input", [this, encoder] { encode(*encoder); }));
}

IngestPipeline::~IngestPipeline() { stop(); }

void IngestPipeline::stop() {
  {
    const std::scoped_lock lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  if (read_thread_.joinable()) read_thread_.join();  // first, because it starts the other threads
  for (std::thread& thread : encode_threads_) thread.join();
}

void IngestPipeline::read() {
  int64_t number = 0;
  try {
    while (true) {
      std::optional<TextBlock> block = reader_.next();
      std::unique_lock lock(mutex_);
      if (!block) break;
      changed_.wait(lock, [&] { return stopped_ || number < num_taken_ + max_ahead_; });
      if (stopped_) return;
      waiting_.emplace_back(number++, std::move(*block));
      reader_.reuse(take_spare(spare_texts_));
      const bool are_all_busy = waiting_.size() > num_idle_;
      lock.unlock();
      changed_.notify_all();
      const size_t most = std::min(max_encoders_, static_cast<size_t>(number));
      if (are_all_busy && encode_threads_.size() < most) start_encoder();
    }
  } catch (...) {
    put(number++, {{}, std::current_exception()});
  }
  {
    const std::scoped_lock lock(mutex_);
    num_blocks_ = number;
  }
  changed_.notify_all();
}

void IngestPipeline::encode(BlockEncoder& encoder) {
  while (true) {
    std::unique_lock lock(mutex_);
    ++num_idle_;
    changed_.wait(lock, [&] { return stopped_ || !waiting_.empty() || num_blocks_ >= 0; });
    --num_idle_;
    if (stopped_ || waiting_.empty()) return;
    auto [number, block] = std::move(waiting_.front());
    waiting_.pop_front();
    TokenBuffer memory = take_spare(spare_tokens_);
    lock.unlock();
    Result result;
    try {
      result.item.encoded = encoder.encode(block, std::move(memory));
    } catch (...) {
      result.error = std::current_exception();
    }
    std::string text = std::move(block.bytes);
    result.item.block = std::move(block);
    lock.lock();
    spare_texts_.push_back(std::move(text));
    lock.unlock();
    put(number, std::move(result));
  }
}

void IngestPipeline::put(int64_t number, Result result) {
  {
    const std::scoped_lock lock(mutex_);
    done_.emplace(number, std::move(result));
  }
  changed_.notify_all();
}

void IngestPipeline::give_back(Item item) {
  const std::scoped_lock lock(mutex_);
  spare_tokens_.push_back(std::move(item.encoded.ids));
}

std::optional<IngestPipeline::Item> IngestPipeline::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_.contains(num_taken_) || num_taken_ == num_blocks_; });
  if (num_taken_ == num_blocks_) return std::nullopt;
  Result result = std::move(done_.extract(num_taken_++).mapped());
  lock.unlock();
  changed_.notify_all();
  if (result.error) std::rethrow_exception(result.error);
  return std::move(result.item);
}

}  // namespace gptrain::data
