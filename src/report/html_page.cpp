#include "report/html_page.h"

#include <fmt/format.h>

#include "report/svg_plot.h"

namespace gptrain::inline report {
namespace {

constexpr std::string_view page_css = R"css(
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 16px/1.45 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 24px 16px 40px; }
h1 { font-size: 24px; margin: 0 0 16px; overflow-wrap: anywhere; }
.summary { display: grid; grid-template-columns: repeat(auto-fill, minmax(160px, 1fr)); gap: 10px; margin: 0 0 16px; }
@media (max-width: 480px) { .summary { grid-template-columns: 1fr 1fr; } }
.summary div { padding: 10px 14px; background: var(--card); border: 1px solid var(--border); border-radius: 10px; }
.summary dt { font-size: 13px; color: var(--muted); }
.summary dd { margin: 0; font-size: 19px; font-weight: 600; font-variant-numeric: tabular-nums; }
.summary small { display: block; font-size: 13px; font-weight: 400; color: var(--muted); }
.plots { display: grid; grid-template-columns: minmax(0, 1fr); gap: 12px; }
@media (min-width: 820px) { .plots { grid-template-columns: repeat(2, minmax(0, 1fr)); } }
.plots { margin-bottom: 16px; }
.note { color: var(--muted); font-size: 14px; margin: 0 0 12px; }
section { margin: 0 0 16px; padding: 12px 16px; background: var(--card); border: 1px solid var(--border); border-radius: 10px; overflow-x: auto; }
section h2 { font-size: 17px; margin: 0 0 8px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 10px 4px 0; text-align: left; vertical-align: top; border-top: 1px solid var(--border); }
th { color: var(--muted); font-weight: 400; border-top: 0; }
.number { text-align: right; white-space: nowrap; }
details { margin-top: 16px; padding: 12px 16px; background: var(--card); border: 1px solid var(--border); border-radius: 10px; }
summary { font-weight: 600; cursor: pointer; }
pre { overflow-x: auto; font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
)css";

}  // namespace

void HtmlPage::add_summary(const std::vector<Fact>& facts) {
  body_ += "<dl class=\"summary\">\n";
  for (const Fact& fact : facts)
    body_ += fmt::format("<div><dt>{}</dt><dd>{}{}</dd></div>\n", fact.name, escape_html(fact.value),
                         fact.note.empty() ? "" : fmt::format(" <small>{}</small>", escape_html(fact.note)));
  body_ += "</dl>\n";
}

void HtmlPage::add_note(const std::string& html) { body_ += fmt::format("<p class=\"note\">{}</p>\n", html); }

void HtmlPage::add_section(std::string_view heading, const std::string& html) {
  const std::string line = heading.empty() ? "" : fmt::format("<h2>{}</h2>\n", heading);
  body_ += fmt::format("<section>\n{}{}</section>\n", line, html);
}

void HtmlPage::add_plots(const std::string& html) { body_ += fmt::format("<div class=\"plots\">\n{}</div>\n", html); }

void HtmlPage::add_config(const std::string& config) {
  body_ += fmt::format("<details>\n<summary>Config</summary>\n<pre>{}</pre>\n</details>\n", escape_html(config));
}

std::string HtmlPage::text() const {
  const std::string safe_title = escape_html(title_);
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      // Forbids the browser to load or run anything; pictures are part of the page.
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src "
      "data:\">\n";
  out += fmt::format("<title>{}</title>\n<style>{}{}{}{}</style>\n</head>\n<body>\n<main>\n<h1>{}</h1>\n", safe_title,
                     color_css(), page_css, plot_style_css(), css_, safe_title);
  return out + body_ + "</main>\n</body>\n</html>\n";
}

}  // namespace gptrain::report
