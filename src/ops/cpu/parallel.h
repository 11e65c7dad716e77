// Splits work over an OpenMP team.
#pragma once

#include <algorithm>
#include <cstdint>
#include <omp.h>

namespace gptrain::inline ops {

// While it lives, parallel regions of the calling thread without a given size, as oneDNN's are, have this many threads,
// even on a busy machine (it turns OMP_DYNAMIC off).
class TeamSize {
 public:
  explicit TeamSize(int count) : count_before_(omp_get_max_threads()), dynamic_before_(omp_get_dynamic()) {
    omp_set_num_threads(count);
    omp_set_dynamic(0);
  }
  ~TeamSize() {
    omp_set_num_threads(count_before_);
    omp_set_dynamic(dynamic_before_);
  }
  TeamSize(const TeamSize&) = delete;
  TeamSize& operator=(const TeamSize&) = delete;

 private:
  int count_before_;
  int dynamic_before_;
};

// Runs body(first, end) on contiguous shares of [0, count), one a thread; body may not throw. The team is either
// complete or one thread: libgomp ends the threads that a smaller team leaves out, and starting them again is slow.
template <typename Body>
void parallel_shares(int num_threads, int64_t count, const Body& body) {
  if (num_threads == 1 || count <= 1) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
#pragma omp parallel num_threads(num_threads)
  {
    const int64_t thread = omp_get_thread_num();
    const int64_t team = omp_get_num_threads();
    const int64_t first = count * thread / team;
    const int64_t end = count * (thread + 1) / team;
    if (first < end) body(first, end);
  }
}

// Calls body(first, end) on ranges of columns, multiples of 64 except the last, so that a kernel's vectors begin at the
// same columns for any number of threads.
template <typename Body>
void parallel_column_blocks(int num_threads, int64_t cols, const Body& body) {
  constexpr int64_t block = 64;
  parallel_shares(num_threads, (cols + block - 1) / block,
                  [&](int64_t first, int64_t end) { body(first * block, std::min(end * block, cols)); });
}

// Cuts rows into fixed blocks, whose partial sums are added in order, so that a sum over rows does not depend on the
// number of threads. There are enough blocks for many cores, and few enough to keep the partial sums small.
struct RowBlocks {
  static constexpr int64_t most_blocks = 128;
  static constexpr int64_t least_rows = 16;

  explicit RowBlocks(int64_t num_rows_)
      : num_rows(num_rows_),
        block_rows(std::max(least_rows, (num_rows_ + most_blocks - 1) / most_blocks)),
        num_blocks((num_rows_ + block_rows - 1) / block_rows) {}

  int64_t first_row(int64_t block) const { return block * block_rows; }
  int64_t end_row(int64_t block) const { return std::min(num_rows, (block + 1) * block_rows); }

  int64_t num_rows;
  int64_t block_rows;
  int64_t num_blocks;
};

}  // namespace gptrain::ops
