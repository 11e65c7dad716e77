// The frame of libraries that decompress a stream struct with next_in, avail_in, next_out and avail_out.
#pragma once

#include <cstddef>
#include <string_view>

#include "data/ingest/decoders.h"

namespace gptrain::inline data {

// Shows the stream its input and output, and calls run(), which returns true if the stream has ended.
template <typename Stream, typename Run>
Decoder::Step decode_stream(Stream& stream, std::string_view input, char* out, size_t capacity, const Run& run) {
  stream.next_in = reinterpret_cast<decltype(stream.next_in)>(const_cast<char*>(input.data()));
  stream.avail_in = static_cast<decltype(stream.avail_in)>(input.size());
  stream.next_out = reinterpret_cast<decltype(stream.next_out)>(out);
  stream.avail_out = static_cast<decltype(stream.avail_out)>(capacity);
  const bool ended = run();
  return {input.size() - stream.avail_in, capacity - stream.avail_out, ended};
}

}  // namespace gptrain::data
