// Progress of a long piece of work on the standard error stream: a bar on a terminal, a few plain lines in a log.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace gptrain {

enum class ProgressUnit { items, bytes };

// What the work has made so far, of which rates are shown, too.
struct ProgressMade {
  int64_t tokens = 0;
  // Bytes of text that came out of compressed ones: then the rate of bytes is theirs.
  int64_t text_bytes = 0;
};

// On a terminal one line is redrawn in place at most ten times a second; elsewhere a line is written at most every five
// seconds. finish() always leaves one last line. Destroyed unfinished (an error is on its way), it ends the bar's line
// so that the message starts on its own. One thread at a time; update() costs a clock read, so call it per block of
// work rather than per byte.
class Progress {
 public:
  // `total` as in update(); 0 or less means unknown: neither percentage nor ETA is shown. `stream` is borrowed.
  Progress(std::string label, int64_t total, ProgressUnit unit = ProgressUnit::items, std::FILE* stream = stderr);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Since the start, not since the last call.
  void update(int64_t done, const ProgressMade& made = {});
  void finish();              // the work is complete, whatever update() last said

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

// The texts of a Progress. `elapsed_seconds` is the time since its start; the ETA assumes that the mean speed stays.
// Rates are those of bytes, and of tokens where there are any.
// Bar:  `packing [=========>           ]  45% 1.2 GiB/2.7 GiB 125.1 MiB/s 31.2M tokens/s eta 12.0 s`
// Line: `packing: 45% (1.2 GiB of 2.7 GiB, 125.1 MiB/s, 31.2M tokens/s), eta 12.0 s`
std::string format_progress_bar(const std::string& label, int64_t done, int64_t total, ProgressUnit unit,
                                double elapsed_seconds, const ProgressMade& made = {});
std::string format_progress_line(const std::string& label, int64_t done, int64_t total, ProgressUnit unit,
                                 double elapsed_seconds, const ProgressMade& made = {});
// `packing: 2.7 GiB in 22.1 s (125.1 MiB/s, 31.2M tokens/s)`
std::string format_progress_end(const std::string& label, int64_t done, ProgressUnit unit, double elapsed_seconds,
                                const ProgressMade& made = {});

}  // namespace gptrain
