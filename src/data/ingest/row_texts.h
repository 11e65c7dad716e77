// Writes a row's text into a block of rows.
#pragma once

#include <cstdint>
#include <string>

namespace gptrain::inline data {

// A row is its text's length in 32 bits (null_row_text: no text), then the text's bytes.
constexpr uint32_t null_row_text = 0xFFFFFFFF;
inline void append_row_text(std::string& bytes, const void* text, uint32_t length) {
  bytes.append(reinterpret_cast<const char*>(&length), sizeof length);
  if (length != null_row_text) bytes.append(static_cast<const char*>(text), length);
}

}  // namespace gptrain::data
