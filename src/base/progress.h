// Progress of a long task on standard error: a bar on a terminal, a few lines in a log.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace gptrain::inline base {

enum class ProgressUnit { items, bytes };

// Output of the work so far, whose rates are shown as well.
struct ProgressMade {
  int64_t tokens = 0;
  // Bytes of text read from the inputs, compressed or not: if above 0, the rate of bytes is of these.
  int64_t text_bytes = 0;
};

// On a terminal the bar is redrawn at most ten times a second; elsewhere a line is printed at most every five seconds.
// finish() prints one last line. If destroyed unfinished (an error is thrown), ends the bar's line so that the message
// starts on a new one. Not thread-safe. update() reads the clock: call it per block of work, not per byte.
class Progress {
 public:
  // `total` has the unit of update(); 0 or less: unknown, and neither percentage nor ETA is shown. Borrows `stream`.
  Progress(std::string label, int64_t total, ProgressUnit unit = ProgressUnit::items, std::FILE* stream = stderr);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `done` counts from the start, not from the last call.
  void update(int64_t done, const ProgressMade& made = {});
  void finish();  // prints the last line; the work is complete, whatever update() was last given

 private:
  using Clock = std::chrono::steady_clock;

  double elapsed_seconds(Clock::time_point now) const;
  void write(const std::string& text);
  void draw_bar(Clock::time_point now);

  std::string label_;
  int64_t total_;
  int64_t done_ = 0;
  ProgressMade made_;
  ProgressUnit unit_;
  std::FILE* stream_;
  bool is_terminal_;
  bool bar_is_open_ = false;
  bool finished_ = false;
  Clock::time_point start_;
  Clock::time_point next_output_;
};

// The texts of a Progress. `elapsed_seconds` counts from its start; the ETA assumes the mean speed so far. Tokens per
// second are left out if `tokens` is 0.
// Bar:  `packing [=========>           ]  45% 1.2 GiB/2.7 GiB 125.1 MiB/s 31.2M tokens/s eta 12.0 s`
// Without a total: `packing 1.2 GiB 125.1 MiB/s 31.2M tokens/s in 9.8 s`
// Line: `packing: 45% (1.2 GiB of 2.7 GiB, 125.1 MiB/s, 31.2M tokens/s), eta 12.0 s`
std::string format_progress_bar(const std::string& label, int64_t done, int64_t total, ProgressUnit unit,
                                double elapsed_seconds, const ProgressMade& made = {});
std::string format_progress_line(const std::string& label, int64_t done, int64_t total, ProgressUnit unit,
                                 double elapsed_seconds, const ProgressMade& made = {});
// `packing: 2.7 GiB in 22.1 s (125.1 MiB/s, 31.2M tokens/s)`
std::string format_progress_end(const std::string& label, int64_t done, ProgressUnit unit, double elapsed_seconds,
                                const ProgressMade& made = {});

}  // namespace gptrain::base
