// Whole documents put into samples: best-fit packing (arXiv 2404.10830).
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace gptrain {

// Best-fit decreasing: the longest first, each goes into the bin that has the least room left of those that still hold
// it. Returns the bin of each; bins are numbered from 0 in the order of the first that is in them. Lengths are from 1 to
// `capacity`. O(n log n).
std::vector<int64_t> best_fit_decreasing(std::span<const int64_t> lengths, int64_t capacity);

struct BestFitResult {
  int64_t samples = 0;
  int64_t cut_documents = 0;  // longer than a sample
};

// Writes the documents of the token file `in` to `out`, in samples of at most `length` inputs and one target more
// (TokenMeta::best_fit_length). A document is cut only where it is longer than that, into samples of its own and a rest,
// which is put where it fits. Samples come in the order of their first documents, and documents in theirs within a
// sample. Memory: about 50 bytes a document. Throws Error(data) naming the file that cannot be read or written.
BestFitResult write_best_fit(const std::filesystem::path& in, const std::filesystem::path& out, int64_t length);

}  // namespace gptrain
