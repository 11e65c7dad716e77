#include "base/progress.h"

#include <algorithm>
#include <fmt/format.h>
#include <string_view>
#include <unistd.h>
#include <utility>

#include "base/output.h"
#include "base/units.h"

namespace gptrain::inline base {
namespace {

constexpr std::chrono::milliseconds bar_interval{100};
constexpr std::chrono::seconds line_interval{5};
constexpr int64_t bar_width = 24;
constexpr const char* clear_to_end_of_line = "\033[K";

std::string format_amount(double amount, ProgressUnit unit) {
  return unit == ProgressUnit::bytes ? format_bytes(amount) : format_count(amount);
}

std::string format_eta(int64_t done, int64_t total, double elapsed_seconds) {
  if (done <= 0) return "-";
  return format_duration(elapsed_seconds / static_cast<double>(done) *
                         static_cast<double>(std::max(total - done, int64_t{0})));
}

std::string format_rate(int64_t done, ProgressUnit unit, double elapsed_seconds) {
  return format_amount(static_cast<double>(done) / elapsed_seconds, unit) + "/s";
}

std::string format_token_rate(int64_t tokens, double elapsed_seconds) {
  return format_count(static_cast<double>(tokens) / elapsed_seconds) + " tokens/s";
}

std::string format_byte_rate(int64_t done, ProgressUnit unit, double elapsed_seconds, const ProgressMade& made) {
  if (made.text_bytes == 0) return format_rate(done, unit, elapsed_seconds);
  return format_rate(made.text_bytes, ProgressUnit::bytes, elapsed_seconds) + " of text";
}

// Returns the rates in bytes and tokens per second, each preceded by `before`.
std::string format_rates(std::string_view before, int64_t done, ProgressUnit unit, double elapsed_seconds,
                         const ProgressMade& made) {
  if (elapsed_seconds <= 0) return "";
  std::string text;
  if (unit == ProgressUnit::bytes)
    text = fmt::format("{}{}", before, format_byte_rate(done, unit, elapsed_seconds, made));
  if (made.tokens > 0) text += fmt::format("{}{}", before, format_token_rate(made.tokens, elapsed_seconds));
  return text;
}

int64_t share_of(int64_t parts, int64_t done, int64_t total) {
  const double share = static_cast<double>(done) / static_cast<double>(total);
  return static_cast<int64_t>(static_cast<double>(parts) * std::clamp(share, 0.0, 1.0));
}

}  // namespace

std::string format_progress_bar(const std::string& label, int64_t done, int64_t total, ProgressUnit unit,
                                double elapsed_seconds, const ProgressMade& made) {
  const std::string amount = format_amount(static_cast<double>(done), unit);
  if (total <= 0) {
    return fmt::format("{} {}{} in {}", label, amount, format_rates(" ", done, unit, elapsed_seconds, made),
                       format_duration(elapsed_seconds));
  }
  std::string bar(share_of(bar_width, done, total), '=');
  if (done < total) bar += '>';
  return fmt::format("{} [{:<{}}] {:3}% {}/{}{} eta {}", label, bar, bar_width, share_of(100, done, total), amount,
                     format_amount(static_cast<double>(total), unit),
                     format_rates(" ", done, unit, elapsed_seconds, made), format_eta(done, total, elapsed_seconds));
}

std::string format_progress_line(const std::string& label, int64_t done, int64_t total, ProgressUnit unit,
                                 double elapsed_seconds, const ProgressMade& made) {
  const std::string amount = format_amount(static_cast<double>(done), unit);
  if (total <= 0) {
    return fmt::format("{}: {}{} in {}", label, amount, format_rates(", ", done, unit, elapsed_seconds, made),
                       format_duration(elapsed_seconds));
  }
  return fmt::format("{}: {}% ({} of {}{}), eta {}", label, share_of(100, done, total), amount,
                     format_amount(static_cast<double>(total), unit),
                     format_rates(", ", done, unit, elapsed_seconds, made), format_eta(done, total, elapsed_seconds));
}

std::string format_progress_end(const std::string& label, int64_t done, ProgressUnit unit, double elapsed_seconds,
                                const ProgressMade& made) {
  std::string text = fmt::format("{}: {} in {}", label, format_amount(static_cast<double>(done), unit),
                                 format_duration(elapsed_seconds));
  if (elapsed_seconds <= 0) return text;
  text += fmt::format(" ({}", format_byte_rate(done, unit, elapsed_seconds, made));
  if (made.tokens > 0) text += ", " + format_token_rate(made.tokens, elapsed_seconds);
  return text + ')';
}

Progress::Progress(std::string label, int64_t total, ProgressUnit unit, std::FILE* stream)
    : label_(without_controls(label)),
      total_(total),
      unit_(unit),
      stream_(stream),
      is_terminal_(::isatty(::fileno(stream)) == 1),
      start_(Clock::now()),
      next_output_(is_terminal_ ? start_ : start_ + line_interval) {}

Progress::~Progress() {
  if (bar_is_open_) std::fputc('\n', stream_);
}

void Progress::update(int64_t done, const ProgressMade& made) {
  done_ = done;
  made_ = made;
  const Clock::time_point now = Clock::now();
  if (finished_ || now < next_output_) return;
  if (is_terminal_) {
    draw_bar(now);
  } else {
    write(format_progress_line(label_, done_, total_, unit_, elapsed_seconds(now), made_) + '\n');
  }
  next_output_ = now + (is_terminal_ ? Clock::duration(bar_interval) : Clock::duration(line_interval));
}

void Progress::finish() {
  if (std::exchange(finished_, true)) return;
  const Clock::time_point now = Clock::now();
  if (total_ > 0) done_ = total_;
  // On a terminal the last line replaces the bar.
  write(fmt::format("{}{}{}\n", is_terminal_ ? "\r" : "",
                    format_progress_end(label_, done_, unit_, elapsed_seconds(now), made_),
                    is_terminal_ ? clear_to_end_of_line : ""));
  bar_is_open_ = false;
}

// Ignores errors: a bar that cannot be shown must not fail the work.
void Progress::write(const std::string& text) {
  std::fputs(text.c_str(), stream_);
  std::fflush(stream_);
}

double Progress::elapsed_seconds(Clock::time_point now) const {
  return std::chrono::duration<double>(now - start_).count();
}

void Progress::draw_bar(Clock::time_point now) {
  write(fmt::format("\r{}{}", format_progress_bar(label_, done_, total_, unit_, elapsed_seconds(now), made_),
                    clear_to_end_of_line));
  bar_is_open_ = true;
}

}  // namespace gptrain::base
