// Packs whole documents into samples: best-fit packing (arXiv 2404.10830).
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace gptrain::inline data {

// Packs by best-fit decreasing: longest first, each goes into the bin with the least remaining room that still holds
// it. Returns the bin of each; bins are numbered from 0 in the order of their first members. REQUIRES: lengths in [1,
// capacity]. O(n log n).
std::vector<int64_t> best_fit_decreasing(std::span<const int64_t> lengths, int64_t capacity);

struct BestFitResult {
  int64_t samples = 0;
  int64_t cut_documents = 0;  // number of documents longer than a sample
};

// Writes the documents of the token file `in` to `out`, in samples of at most `length` inputs plus one target
// (TokenMeta::best_fit_length). Only a longer document is cut, into full samples and a rest, which is packed like a
// document. Samples are in the order of their first documents, documents within a sample in theirs. Memory: about 50
// bytes a document. Throws Error(data), with the file's name, if a file cannot be read or written.
BestFitResult write_best_fit(const std::filesystem::path& in, const std::filesystem::path& out, int64_t length);

}  // namespace gptrain::data
