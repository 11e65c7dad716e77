#include "report/timeline_page.h"

#include <algorithm>
#include <fmt/format.h>

#include "base/append.h"
#include "base/enum_array.h"
#include "base/text_parts.h"
#include "report/svg_plot.h"

namespace gptrain::inline report {
namespace {

constexpr double width = 1400;
constexpr double left = 70;
constexpr double row_height = 24;
constexpr double bar_height = 20;
constexpr double top = 10;
constexpr double narrowest = 0.5;  // width in pixels below which bars are joined
constexpr double room_for_label = 16;

constexpr EnumArray<PipelineBar::Kind, std::string_view, 4> classes = {"f", "b", "w", "u"};

struct TimeUnit {
  std::string_view name;
  double seconds;
};

// Returns the unit in which an axis up to `seconds` has numbers of one to three digits.
TimeUnit unit_of(double seconds) {
  if (seconds >= 1) return {"s", 1};
  return seconds >= 1e-3 ? TimeUnit{"ms", 1e-3} : TimeUnit{"us", 1e-6};
}

// Returns the chunks of a stage, in the order of the model's layers.
std::vector<int32_t> chunks_of(const PlannedStage& stage) {
  std::vector<int32_t> chunks;
  for (const PipelineBar& bar : stage.bars)
    if (bar.micro_batch >= 0) chunks.push_back(bar.chunk);
  std::sort(chunks.begin(), chunks.end());
  chunks.erase(std::unique(chunks.begin(), chunks.end()), chunks.end());
  return chunks;
}

class Drawing {
 public:
  explicit Drawing(const PlannedPipeline& pipeline)
      : pipeline_(pipeline), scale_(pipeline.seconds > 0 ? (width - left) / pipeline.seconds : 0) {}

  std::string svg() {
    const double height = top + row_height * static_cast<double>(pipeline_.stages.size()) + 24;
    append(text_, "<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"passes of each stage over time\">\n",
           width, height);
    for (size_t i = 0; i < pipeline_.stages.size(); ++i) draw_stage(i);
    draw_axis(height - 20);
    text_ += "</svg>\n";
    return std::move(text_);
  }

 private:
  double x(double seconds) const { return left + seconds * scale_; }

  void draw_stage(size_t stage) {
    const double y = top + row_height * static_cast<double>(stage);
    append(text_, "<text x=\"4\" y=\"{:.1f}\">stage {}</text>\n", y + 14, stage);
    const std::vector<PipelineBar>& bars = pipeline_.stages[stage].bars;
    chunks_ = chunks_of(pipeline_.stages[stage]);
    for (size_t i = 0; i < bars.size();) {
      const PipelineBar& bar = bars[i];
      double end = bar.time.end_seconds;
      size_t next = i + 1;
      while (next < bars.size() && bars[next].kind == bar.kind && (end - bar.time.start_seconds) * scale_ < narrowest)
        end = bars[next++].time.end_seconds;
      draw_bar(bar, end, next - i, y);
      i = next;
    }
  }

  // Returns 1 for every other chunk of the stage, which has lighter colors.
  size_t shade_of(const PipelineBar& bar) const {
    return static_cast<size_t>(std::lower_bound(chunks_.begin(), chunks_.end(), bar.chunk) - chunks_.begin()) % 2;
  }

  void draw_bar(const PipelineBar& bar, double end, size_t joined, double y) {
    const double start = bar.time.start_seconds;
    const double bar_width = (end - start) * scale_;
    // Bars too narrow for a pointer get no name, which keeps a page of many thousand bars small.
    const bool named = joined == 1 && bar_width >= 2;
    append(text_, "<rect class=\"{}{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.0f}\"",
           classes[bar.kind], shade_of(bar), x(start), y, bar_width, bar_height);
    if (!named) {
      text_ += "/>\n";
      return;
    }
    const bool of_micro_batch = bar.micro_batch >= 0;
    append(text_, "><title>{}{}, {}</title></rect>\n", bar_name(bar.kind),
           of_micro_batch ? fmt::format(" of micro-batch {}, chunk {}", bar.micro_batch, bar.chunk) : "",
           seconds_text(end - start));
    if (of_micro_batch && bar_width >= room_for_label)
      append(text_, "<text class=\"m\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", (x(start) + x(end)) / 2, y + 14,
             bar.micro_batch);
  }

  void draw_axis(double y) {
    const TimeUnit unit = unit_of(pipeline_.seconds);
    const std::vector<double> ticks = nice_ticks(0, pipeline_.seconds / unit.seconds, 10);
    const std::vector<std::string> labels = format_ticks(ticks);
    for (size_t i = 0; i < ticks.size(); ++i) {
      append(text_, "<text class=\"t\" x=\"{:.1f}\" y=\"{:.1f}\">{} {}</text>\n", x(ticks[i] * unit.seconds), y + 14,
             labels[i], unit.name);
    }
  }

  const PlannedPipeline& pipeline_;
  const double scale_;           // pixels per second
  std::vector<int32_t> chunks_;  // chunks of the stage that is drawn
  std::string text_;
};

constexpr std::string_view style = R"(
body{font:14px system-ui,sans-serif;margin:24px;background:#fff;color:#1b1f24}
.scroll{overflow-x:auto}
svg{width:100%;min-width:900px;height:auto}
text{font-size:12px;fill:currentColor}
.m,.t{text-anchor:middle;font-size:11px}
rect{stroke:#fff;stroke-width:.4}
.f0{fill:#7fb3e6}.f1{fill:#b5d3f2}.b0{fill:#f0b35a}.b1{fill:#f7d7a3}.w0{fill:#86c48a}.w1{fill:#b9dfbb}.u0,.u1{fill:#b9a4d6}
.key span{display:inline-block;padding:2px 8px;margin:0 8px 4px 0;color:#1b1f24}
@media (prefers-color-scheme: dark){body{background:#14171a;color:#dfe3e8}rect{stroke:#14171a}.m{fill:#1b1f24}}
)";

}  // namespace

std::string timeline_page(const PlannedPipeline& pipeline, const std::string& title, bool has_rates) {
  const std::string safe_title = escape_html(title);
  std::string page = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{0}</title>\n<style>{1}</style>\n"
      "</head>\n<body>\n<h1>{0}</h1>\n<p>{2}</p>\n",
      safe_title, style,
      has_rates
          ? fmt::format("One planned step: {}. Stages wait for each other for {:.1f}% of the time of their passes.",
                        seconds_text(pipeline.seconds), 100 * pipeline.bubble())
          : "The target's speed is not known: every op is drawn with a length of one microsecond.");
  page +=
      "<p class=\"key\"><span style=\"background:#7fb3e6\">forward</span>"
      "<span style=\"background:#f0b35a\">backward</span>"
      "<span style=\"background:#86c48a\">weight gradients, if the backward pass is split</span>"
      "<span style=\"background:#b9a4d6\">update</span>"
      "Numbers are micro-batches. Every other chunk of a stage has lighter colors.</p>\n";
  return page + "<div class=\"scroll\">\n" + Drawing(pipeline).svg() + "</div>\n</body>\n</html>\n";
}

}  // namespace gptrain::report
