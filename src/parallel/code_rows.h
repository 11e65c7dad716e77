// Codes of elements that lie together.
#pragma once

#include <cstddef>

#include "ops/backend.h"

namespace gptrain::inline parallel {

// Codes and scales of a row of elements (ops/block_codes.h), borrowed.
struct CodeRow {
  std::byte* codes;
  std::byte* scales;
  int bits = 8;
};

// Encodes one row in parts that threads share.
void encode_row(Backend& backend, const Matrix& values, const CodeRow& to);
// Decodes it.
void decode_row(Backend& backend, const CodeRow& from, const Matrix& values);

}  // namespace gptrain::parallel
