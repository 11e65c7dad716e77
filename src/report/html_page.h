// Builds the HTML reports: one file each, in light and dark, without scripts or network.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gptrain::inline report {

// A page's parts come in the order in which they are added. `css`: rules beside those of all pages, borrowed; they can
// use the colors --page, --card, --text, --muted, --border and --color-0 to --color-7. Parts named `html` are inserted
// as they are; all others are plain text.
class HtmlPage {
 public:
  explicit HtmlPage(std::string title, std::string_view css = {}) : title_(std::move(title)), css_(css) {}

  struct Fact {
    std::string_view name;
    std::string value;
    std::string note = {};
  };
  void add_summary(const std::vector<Fact>& facts);
  void add_note(const std::string& html);
  void add_section(std::string_view heading, const std::string& html);  // an empty heading: none
  void add_plots(const std::string& html);                              // figures of svg_plot.h
  void add_config(const std::string& config);

  std::string text() const;

 private:
  std::string title_;
  std::string_view css_;
  std::string body_;
};

}  // namespace gptrain::report
