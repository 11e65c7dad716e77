// JSON text: comments, positions of syntax errors, duplicate keys, unreadable files.
#include <filesystem>
#include <fstream>

#include "support.h"
#include "unit/temporary_folder.h"

namespace gptrain::config_test {

TEST_CASE("comments are allowed") { CHECK(refusal("// a run\n" + base + "/* the end */").empty()); }

TEST_CASE("a syntax error names file, line and column") {
  CHECK(refusal("{\n  \"run\": {\"steps\": 5,}\n}") ==
        "test.json:2:22: syntax error: nothing follows the comma; the text there:   \"run\": {\"steps\": 5,}");
  CHECK(refusal("") == "test.json:1:1: syntax error: a value is missing at the end; the text there: (the end)");
  CHECK(refusal("{} x").starts_with("test.json:1:4: syntax error: there is text after the end of the JSON value"));
  CHECK(refusal("{\"run\": {\"steps\": 1e999}}").starts_with("test.json:1:19: syntax error: the number is too large"));
  // Each fault behind a comment that itself looks like a fault.
  for (const auto& [text, message] :
       {std::pair{"{\"run\": NaN}", "2:9: syntax error: NaN is no value here"},
        {"{\"run\": {\"out\": \"\\ud800\"}}", "2:18: syntax error: the escape is an unpaired"},
        {"{\"run\": \"\\u12\"}", "2:10: syntax error: four hexadecimal digits"},
        {"{\"run\": \"\xff\"}", "2:10: syntax error: byte 0xff is not UTF-8"},
        {"{} /* open", "2:4: syntax error: the comment that begins here has no end"},
        {"{\"run\": {\"steps\": 5", "2:20: syntax error: the text ends before }"},
        {"{\"run\": {\"steps\": 5,", "2:21: syntax error: the text ends where a member must follow"}}) {
    INFO(text);
    CHECK(refusal("// {,}\n" + std::string(text)).starts_with(std::string("test.json:") + message));
  }
  CHECK(refusal("[]").starts_with("test.json: the config must be a JSON object with the sections model, data, batch"));
}

TEST_CASE("duplicate keys are faults wherever they stand") {
  const std::string rule = ": is given twice (try leaving one of them out)";
  std::string text = base;
  text.insert(text.rfind('}'), R"(, "run": {"seed": 1, "steps": 5})");
  CHECK(refusal(text) == "run = {...}" + rule);
  CHECK(fault({R"(data.train=[{"path": "a"}, {"path": "b", "path": "c"}])"}) == "data.train[1].path = \"c\"" + rule);
  CHECK(refusal(R"({"log": {"every_steps": 1, "every_steps": 1, "every_steps": [[2]]}})")
            .starts_with("log.every_steps = 1" + rule + "\nlog.every_steps = [...]" + rule + "\n"));
}

TEST_CASE("deep nesting is a fault, not a crash") {
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  // An override that is not JSON is a word.
  CHECK(fault({"run.steps=" + deep}).starts_with("run.steps = \"[[["));
  CHECK(refusal(deep) ==
        "test.json:1:65: syntax error: nested deeper than 64 levels; the text there: " + std::string(60, '['));
  const std::string allowed = std::string(63, '[') + std::string(63, ']');
  CHECK(fault({"run.steps=" + allowed}) == "run.steps = [...]: must be an integer (try 1000)");
}

TEST_CASE("long values are cut in messages") {
  const std::string message = fault({"model.norm=" + std::string(1000, 'x')});
  CHECK(message.starts_with("model.norm = \"xxx"));
  CHECK(message.size() < 200);
}

TEST_CASE("load_config reads a file and names one that it cannot read") {
  const TemporaryFolder folder;
  const auto file = folder / "run.json";
  std::ofstream(file) << base;
  CHECK(load_config(file, Overrides{"run.steps=3"}).run.steps == 3);

  const auto message = [](const std::filesystem::path& path) -> std::string {
    try {
      load_config(path, {});
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::usage);
      return error.what();
    }
    return {};
  };
  CHECK(message(folder / "none.json") == "config file " + (folder / "none.json").string() +
                                             ": not found or not accessible (give the path of a JSON file)");
  CHECK(message(folder.path()) ==
        "config file " + folder.path().string() + ": is a folder (give the path of a JSON file)");
  std::ofstream(file) << "{";
  CHECK(message(file).starts_with(file.string() + ":1:2: syntax error"));
}

TEST_CASE("edit distance counts insertions, deletions and substitutions") {
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("num_layers", "num_layer") == 1);
  CHECK(word_distance("timeout", "timeout_seconds") == 0);
  CHECK(word_distance("timeouts", "timeout_seconds") == 7);
}

}  // namespace gptrain::config_test
