#include "report/dry_run_page.h"

#include <algorithm>
#include <fmt/format.h>
#include <string_view>
#include <vector>

#include "base/text_parts.h"
#include "base/units.h"
#include "report/dry_run.h"
#include "report/html_page.h"
#include "report/svg_plot.h"

namespace gptrain::inline report {
namespace {

// On a narrow page lines are wrapped, without the spaces that align columns.
constexpr std::string_view css =
    "pre { overflow-x: auto; font-size: 13px; margin: 0; }\n"
    "@media (max-width: 640px) { pre { white-space: pre-line; } }\n";

std::vector<HtmlPage::Fact> facts_of(const DryRun& run) {
  const int64_t peak = run.memory.total();
  std::vector<HtmlPage::Fact> facts = {
      {"Parameters", format_count(static_cast<double>(run.spec.parameters()))},
      {"Peak memory", bytes_text(peak),
       fmt::format("of {}'s {}", run.target.name, bytes_text(run.target.memory_bytes))}};
  if (run.forecast) {
    facts.push_back({"Step", seconds_text(run.forecast->step_seconds), "by " + run.forecast->software});
    if (!run.forecast->published.software.empty())
      facts.push_back(
          {"Published step", seconds_text(run.forecast->published.seconds), run.forecast->published.software});
  }
  if (run.rate) facts.push_back({"Speed", format_count(run.rate->tokens_per_second) + " tokens/s", run.rate->origin});
  return facts;
}

}  // namespace

std::string dry_run_page(const DryRun& run, const std::string& title) {
  HtmlPage page(title, css);
  if (run.forecast && !run.forecast->origin.empty()) page.add_note(escape_html(run.forecast->origin));
  page.add_summary(facts_of(run));
  // Sections of the text are separated by empty lines, and begin with their headings.
  const std::string text = dry_run_text(run);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find("\n\n", begin), text.size());
    const std::string section = text.substr(begin, end - begin);
    const size_t heading = std::min(section.find('\n'), section.size());
    page.add_section(section.substr(0, heading), fmt::format("<pre>{}</pre>\n", escape_html(section.substr(heading))));
    begin = end + 2;
  }
  return page.text();
}

}  // namespace gptrain::report
