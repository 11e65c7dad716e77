// OUT/report.html: one page about a run, made from OUT/metrics.jsonl. It is self-contained: no network, no script.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace gptrain {

// What metrics.jsonl and samples.jsonl hold, in the order of their lines. A value that was not finite is NaN.
struct RunHistory {
  struct Step {
    int64_t step = 0;
    int64_t tokens = 0;
    double loss = 0;
    double grad_norm = 0;
    double lr = 0;
    double step_seconds = 0;
    double tokens_per_second = 0;
    double mfu = 0;         // 0..1
    double peak_bytes = 0;  // exact up to 2^53
    bool skipped = false;
  };
  struct Validation {
    int64_t step = 0;
    double loss = 0;
    double bits_per_byte = 0;  // NaN where it is not known
  };
  struct Rollback {
    int64_t step = 0;  // that the run has gone back to
    int64_t from_step = 0;
    int64_t left_out = 0;  // samples
  };
  struct Sample {
    int64_t step = 0;
    std::string prompt, text;
  };
  std::vector<Step> steps;
  std::vector<Validation> validations;
  std::vector<Rollback> rollbacks;
  std::vector<Sample> samples;
};

// Lines that are not records are passed over: the last one is cut when a run was killed. A missing file is an empty
// history. Throws Error(usage) when an existing file cannot be read.
RunHistory read_run_history(const std::filesystem::path& metrics_file);
// Adds those of samples.jsonl; the same holds for it.
void read_samples(const std::filesystem::path& samples_file, RunHistory& history);

// The whole HTML document: summary, plots of loss (training and validation), learning rate, gradient norm, throughput
// and memory over steps, the last texts that the model wrote, and the config.
std::string render_run_page(const std::string& title, const std::string& config_text, const RunHistory& history);

// Writes OUT/report.html from OUT/metrics.jsonl and OUT/samples.jsonl. Atomic (temporary file, rename). Throws
// Error(usage) when a file cannot be read or written.
void write_run_page(const std::filesystem::path& out, const std::string& title, const std::string& config_text);

}  // namespace gptrain
