// OUT/report.html: a page about a run, made from OUT/metrics.jsonl, without network or scripts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "report/heat_map.h"

namespace gptrain::inline report {

// The records of metrics.jsonl and samples.jsonl, in the order of their lines. A value that was not finite is NaN.
struct RunHistory {
  struct Step {
    int64_t step = 0;
    int64_t tokens = 0;
    double loss = 0;
    double grad_norm = 0;
    double lr = 0;
    double step_seconds = 0;
    double tokens_per_second = 0;
    double mfu = 0;         // share, 0 to 1
    double peak_bytes = 0;  // exact up to 2^53
    bool skipped = false;
  };
  struct Validation {
    int64_t step = 0;
    double loss = 0;
    double bits_per_byte = 0;  // NaN if it is not known
  };
  struct Rollback {
    int64_t step = 0;       // step to which the run went back
    int64_t from_step = 0;  // step from which it went back
    int64_t left_out = 0;   // number of samples left out
  };
  struct Sample {
    int64_t step = 0;
    std::string prompt, text;
  };
  std::vector<Step> steps;
  std::vector<LayerLoads> loads;  // loads after some steps, by layer with experts
  std::vector<Validation> validations;
  std::vector<Rollback> rollbacks;
  std::vector<Sample> samples;
};

// Reads metrics.jsonl. Skips lines that are not records: the last line is cut off if a run was killed. Returns an empty
// history if the file is missing. THROWS Error(usage) if it exists and cannot be read.
RunHistory read_run_history(const std::filesystem::path& metrics_file);
// Adds the samples of samples.jsonl, under the same rules.
void read_samples(const std::filesystem::path& samples_file, RunHistory& history);

// Returns the HTML document: summary, plots of loss (training and validation), learning rate, gradient norm, throughput
// and memory over steps, loads of experts, the last texts that the model wrote, and the config.
std::string render_run_page(const std::string& title, const std::string& config_text, const RunHistory& history);

// Writes OUT/report.html from OUT/metrics.jsonl and OUT/samples.jsonl, atomically (temporary file, rename). THROWS
// Error(usage) if a file cannot be read or written.
void write_run_page(const std::filesystem::path& out, const std::string& title, const std::string& config_text);

}  // namespace gptrain::report
