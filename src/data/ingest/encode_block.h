// From a block of an input to the tokens of its documents.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/ingest/block_texts.h"
#include "data/tokenizer/tokenizer.h"

namespace gptrain {

struct EncodeOptions {
  std::string field = "text";
  std::optional<int32_t> end_token;   // put behind each document
  bool replace_invalid_utf8 = false;  // by U+FFFD; else a document that is not UTF-8 is a fault
};

struct EncodedBlock {
  std::vector<int32_t> ids;
  std::vector<size_t> ends;  // of each document, in ids; what is behind the last one goes on in the next block
  int64_t empty_documents = 0;
  struct Fault {
    int64_t line;
    std::string reason;
  };
  static constexpr size_t max_faults = 10;
  std::vector<Fault> faults;  // the first max_faults
  int64_t num_faults = 0;
  bool is_whole = true;  // false where a fault leaves a document without its end, which nothing can make good
};

// One thread at a time.
class BlockEncoder {
 public:
  BlockEncoder(std::shared_ptr<const Tokenizer> tokenizer, const EncodeOptions& options);

  EncodedBlock encode(const Block& block);

 private:
  void end_document(bool has_more);
  void fault(int64_t line, const std::string& reason);

  std::shared_ptr<const Tokenizer> tokenizer_;
  EncodeOptions options_;
  Encoder encoder_;
  BlockTexts texts_;
  EncodedBlock out_;
};

}  // namespace gptrain
