// SPDX-License-Identifier: Apache-2.0
// hypic-engine, run as a program.
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "engine/engine_test.hpp"
#include "engine/files.hpp"
#include "engine/modes.hpp"
#include "engine/program.hpp"
#include "engine/serving_test.hpp"
#include "hypic/store/memory_store.hpp"

namespace {

using engine_test::program_result;
using engine_test::tokens;
using nlohmann::json;
using words = std::vector<std::string>;
namespace fs = std::filesystem;

constexpr int failure = 1;
constexpr int bad_usage = 2;

program_result run(words const& given) { return engine_test::run_program(HYPIC_ENGINE_PROGRAM, given); }

words operator+(words left, words const& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

std::string text_of(fs::path const& path) {
  auto const bytes = hypic_engine::read_file(path);
  return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
}

std::string letters(tokens const& from) { return {from.begin(), from.end()}; }

synthetic::options small_model() {
  return {.family = hypic_engine::model_family::gated_deltanet, .seed = 3, .vocab_size = 256};
}

/// A folder with a small checkpoint and files to prompt it with.
class workplace {
 public:
  explicit workplace(synthetic::options const& what = small_model()) {
    synthetic::write_file(synthetic::make(what), folder_ / "model.safetensors");
    write("a", letters(engine_test::text_tokens("ruth.txt", 0, 40)));
    write("b", letters(engine_test::text_tokens("jonah.txt", 0, 30)));
    write("c", letters(engine_test::text_tokens("james.txt", 0, 50)));
    write("query", letters(engine_test::text_tokens("esther.txt", 0, 20)));
    write("empty", "");
    write("one", "x");
    write("whole-context", std::string(512, 'x'));
    inputs_ = entries();
  }

  std::string at(std::string const& name) const { return folder_ / name; }
  void write(std::string const& name, std::string const& text) const { synthetic::write_text(folder_ / name, text); }
  json result() const { return json::parse(text_of(at("out.json"))); }
  json modes() const { return result()["modes"]; }
  std::string checkpoint() const { return at("model.safetensors"); }

  words compare(words const& segments, std::string const& query = "query") const {
    words given = {"compare", "--checkpoint", checkpoint(), "--segments"};
    for (auto const& segment : segments) given.push_back(at(segment));
    return given + words{"--query", at(query)};
  }
  /// "+name" is fresh, "name" cached.
  words prompt(std::string const& command, words const& spans) const {
    words given = {command, "--checkpoint", checkpoint()};
    for (auto const& span : spans) {
      bool const fresh = span.starts_with("+");
      given.push_back(fresh ? "--fresh" : "--cached");
      given.push_back(at(fresh ? span.substr(1) : span));
    }
    return given;
  }
  words json_out() const { return {"--json", at("out.json")}; }
  words outputs() const { return json_out() + words{"--logits", at("out.safetensors")}; }

  std::set<std::string> entries() const {
    std::set<std::string> names;
    for (auto const& entry : fs::directory_iterator(folder_.path())) names.insert(entry.path().filename());
    return names;
  }
  /// Whether a run left nothing beside the inputs.
  bool untouched() const { return entries() == inputs_; }

 private:
  engine_test::temporary_folder folder_;
  std::set<std::string> inputs_;
};

void check_success(program_result const& result) {
  INFO(result.err);
  CHECK(result.code == 0);
  CHECK(result.err.empty());  // it is no terminal: no bar
}

/// One line on standard error that contains `message`, and nothing else.
void check_refused(program_result const& result, int code, std::string const& message) {
  CAPTURE(result.err);
  CHECK(result.code == code);
  CHECK(result.out.empty());
  CHECK(result.err.starts_with("hypic-engine: "));
  REQUIRE(result.err.ends_with("\n"));
  CHECK(engine_test::is_one_line(result.err.substr(0, result.err.size() - 1)));
  CHECK_THAT(result.err, Catch::Contains(message));
}

void check_fields(json const& object, std::set<std::string> const& expected) {
  std::set<std::string> found;
  for (auto const& [name, value] : object.items()) found.insert(name);
  CHECK(found == expected);
}

// ---- compare ----

TEST_CASE("compare prints and writes every mode with every score") {
  workplace const place;
  auto const result = run(place.compare({"a", "c", "b"}) + place.outputs() + words{"--threads", "2", "--seam", "5"});
  check_success(result);
  auto const written = place.result();
  check_fields(written, {"checkpoint", "segments", "query", "seam", "threads", "modes"});
  CHECK(written["checkpoint"] == place.checkpoint());
  CHECK(written["segments"] == json{place.at("a"), place.at("c"), place.at("b")});
  CHECK(written["query"] == place.at("query"));
  CHECK(written["seam"] == 5);
  CHECK(written["threads"] == 2);
  REQUIRE(written["modes"].size() == hypic_engine::all_modes.size());
  auto const logits = hypic_engine::safetensors::read(place.at("out.safetensors"));
  CHECK(logits.tensors().size() == hypic_engine::all_modes.size());
  for (std::size_t i = 0; i < hypic_engine::all_modes.size(); ++i) {
    auto const& row = written["modes"][i];
    std::string const name(name_of(hypic_engine::all_modes[i]));
    CAPTURE(name);
    CHECK(row["mode"] == name);
    CHECK_THAT(result.out, Catch::Contains(name));
    std::set<std::string> const numbers = {"kl",      "top1",   "nll_full", "nll", "state_error", "tokens_forwarded",
                                           "ttft_ms", "cold_ms"};
    for (auto const& number : numbers) {
      CHECK(row.at(number).is_number());
      CHECK_THAT(result.out, Catch::Contains(number));
    }
    CHECK(row.size() == numbers.size() + 1);
    CHECK(row["tokens_forwarded"].is_number_integer());
    CHECK(logits.at(name).shape == std::vector<std::int64_t>{20, 256});
    CHECK(logits.at(name).type == hypic_engine::element_type::f32);
  }
  CHECK(written["modes"][0]["tokens_forwarded"] == 140);
  CHECK(written["modes"][1]["tokens_forwarded"] == 100);  // the cache saw a, b, c: a alone is common
  CHECK(written["modes"][5]["tokens_forwarded"] == 20 + 2 * 5);
}

TEST_CASE("compare's logits are those of the engine, and the same bits for any number of threads") {
  workplace const place;
  check_success(run(place.compare({"a", "b"}) + place.outputs() + words{"--threads", "1"}));
  auto const one = text_of(place.at("out.safetensors"));
  check_success(run(place.compare({"a", "b"}) + place.outputs() + words{"--threads", "2"}));
  CHECK(text_of(place.at("out.safetensors")) == one);

  hypic_engine::model const runs(hypic_engine::load_checkpoint(place.checkpoint()));
  hypic::memory_store nothing(0);
  hypic_engine::engine serving(runs, nothing, {});
  auto const served = hypic_engine::serve(serving, {serving.fresh(engine_test::text_tokens("ruth.txt", 0, 40)),
                                                    serving.fresh(engine_test::text_tokens("jonah.txt", 0, 30)),
                                                    serving.fresh(engine_test::text_tokens("esther.txt", 0, 20))});
  auto const full = to_float32(hypic_engine::safetensors::read(place.at("out.safetensors")).at("full"));
  CHECK(engine_test::difference(full, served.result.logits.data()) < 2e-4);
}

TEST_CASE("compare takes empty, one-token and duplicate segments, and an empty query") {
  workplace const place;
  check_success(run(place.compare({"empty", "one", "a", "a", "one"}) + place.outputs()));
  auto const scored = place.modes();
  CHECK(scored.size() == hypic_engine::all_modes.size());
  for (auto const& row : scored) CHECK(row["kl"].is_number());
  check_success(run(place.compare({"a", "b"}, "empty") + place.outputs()));
  auto const unscored = place.modes();
  CHECK(unscored.size() == hypic_engine::all_modes.size());
  for (auto const& row : unscored) {
    for (auto const* number : {"kl", "top1", "nll_full", "nll"}) CHECK(row.at(number).is_null());
    CHECK(row["state_error"].is_number());
  }
  auto const logits = hypic_engine::safetensors::read(place.at("out.safetensors"));
  CHECK(logits.at("full").shape == std::vector<std::int64_t>{0, 256});
  check_success(run(place.compare({"empty"}, "one") + place.outputs()));
}

// ---- generate ----

TEST_CASE("generate decodes what the engine decodes, and says what was forwarded") {
  workplace const place;
  auto const result =
      run(place.prompt("generate", {"a", "+b", "c", "+query"}) + words{"--tokens", "9"} + place.json_out());
  check_success(result);
  auto const written = place.result();
  check_fields(written, {"prompt_tokens", "tokens_forwarded", "tokens_prefilled", "tokens_skipped", "spans",
                         "generated", "text", "seam", "threads"});
  CHECK(written["prompt_tokens"] == 140);
  CHECK(written["tokens_forwarded"] == 30 + 8 + 20);
  CHECK(written["tokens_prefilled"] == 90);
  CHECK(written["tokens_skipped"] == 0);

  hypic_engine::model const runs(hypic_engine::load_checkpoint(place.checkpoint()));
  hypic::memory_store store(1 << 30);
  hypic_engine::engine serving(runs, store, {});
  auto served = hypic_engine::serve(serving,
                                    {serving.cached(engine_test::text_tokens("ruth.txt", 0, 40)),
                                     serving.fresh(engine_test::text_tokens("jonah.txt", 0, 30)),
                                     serving.cached(engine_test::text_tokens("james.txt", 0, 50)),
                                     serving.fresh(engine_test::text_tokens("esther.txt", 0, 20))},
                                    9);
  // Another kernel of BLAS rounds otherwise, so that a token counts as the best one where its logit is that of the best.
  auto const generated = written["generated"].get<tokens>();
  REQUIRE(generated.size() == 9);
  auto const last = engine_test::row_of(served.result.logits, served.result.logits.rows() - 1);
  std::vector<float> logits(last.begin(), last.end());
  for (std::size_t i = 0; i < generated.size(); ++i) {
    auto const best = *std::max_element(logits.begin(), logits.end());
    CHECK(logits.at(static_cast<std::size_t>(generated[i])) > best - 4e-4f);
    logits = serving.extend(served.memory, 140 + static_cast<std::int64_t>(i), {generated[i]});
  }
  auto const text = written["text"].get<std::string>();
  CHECK(engine_test::is_one_line(text));
  CHECK(result.out.starts_with(text + "\n"));
  CHECK_THAT(result.out, Catch::Contains("58 of 140 tokens forwarded, 90 prefilled alone, 0 skipped"));
}

TEST_CASE("generate escapes bytes that are not printable") {
  workplace const place;  // random weights give any bytes
  check_success(run(place.prompt("generate", {"+a"}) + words{"--tokens", "60"} + place.json_out()));
  auto const written = place.result();
  std::string expected;
  for (auto const token : written["generated"].get<tokens>()) {
    char hex[8];
    std::snprintf(hex, sizeof hex, "\\x%02x", static_cast<unsigned>(token));
    auto const plain = token >= 0x20 && token < 0x7f;
    expected += token == '\\' ? "\\\\" : token == '\n' ? "\\n" : plain ? std::string(1, static_cast<char>(token)) : hex;
  }
  CHECK(written["text"] == expected);
}

TEST_CASE("a prompt of reused spans alone serves without tokens, and cannot be decoded from") {
  workplace const place;
  check_success(run(place.prompt("generate", {"a", "b", "+empty"}) + words{"--tokens", "0"} + place.json_out()));
  CHECK(place.result()["generated"].empty());
  CHECK(place.result()["spans"].size() == 3);
  fs::remove(place.at("out.json"));
  check_refused(run(place.prompt("generate", {"a", "b", "+empty"}) + place.json_out()), failure,
                "found a cached span that is reused, which gives no logits; expected --fresh");
  CHECK(place.untouched());
  // A segment that is all seam is forwarded whole, so it has logits.
  check_success(run(place.prompt("generate", {"a", "one", "empty"}) + words{"--tokens", "2"}));
}

TEST_CASE("prompt plus generated tokens are bounded by the context") {
  workplace const place;
  check_success(run(place.prompt("generate", {"+a"}) + words{"--tokens", "472"}));
  check_refused(run(place.prompt("generate", {"+a"}) + words{"--tokens", "473"} + place.json_out()), failure,
                "is 513, expected at most 512");
  check_refused(run(place.prompt("generate", {"whole-context", "+one"}) + words{"--tokens", "0"} + place.json_out()),
                failure, "is 513, expected at most 512");
  CHECK(place.untouched());
}

namespace {

/// What `--trace` wrote.
struct written_trace {
  struct range {
    std::string name;
    std::int64_t thread;
    double start, end;  ///< microseconds
  };
  std::vector<range> ranges;
  std::map<std::string, std::int64_t> totals;

  explicit written_trace(std::string const& path) {
    auto const written = json::parse(text_of(path));
    for (auto const& event : written["traceEvents"]) {
      auto const name = event["name"].get<std::string>();
      if (event["ph"] == "C") totals[name] = event["args"]["total"].get<std::int64_t>();
      if (event["ph"] != "X") continue;
      auto const start = event["ts"].get<double>();
      ranges.push_back({name, event["tid"].get<std::int64_t>(), start, start + event["dur"].get<double>()});
    }
  }
  std::vector<range> named(std::string const& name) const {
    std::vector<range> found;
    std::ranges::copy_if(ranges, std::back_inserter(found), [&](range const& one) { return one.name == name; });
    return found;
  }
  std::int64_t count(std::string const& name) const { return std::ssize(named(name)); }
  /// Of the ranges of that name those that lie in `around`, on its thread.
  std::int64_t count_within(range const& around, std::string const& name) const {
    constexpr double rounding = 1e-3;  // times are written to the nanosecond
    return std::ranges::count_if(named(name), [&](range const& one) {
      return one.thread == around.thread && one.start >= around.start - rounding && one.end <= around.end + rounding;
    });
  }
};

}  // namespace

TEST_CASE("a trace of a request shows its cold segments, its two passes and what the store said") {
  workplace const place;
  check_success(
      run(place.prompt("generate", {"a", "b", "+query"}) + words{"--tokens", "2", "--trace", place.at("trace.json")}));
  written_trace const trace(place.at("trace.json"));
  for (auto const& range : trace.ranges) CHECK(range.end >= range.start);
  CHECK(trace.count("engine.fetch") == 1);
  CHECK(trace.count("engine.cold_segment") == 2);
  CHECK(trace.count("engine.assemble") == 2);  // the prompt, and the one token that is forwarded after it
  CHECK(trace.count("segment.repair") == trace.totals.at("segment.repair"));
  CHECK(trace.count("segment.repair") >= 2);
  CHECK(trace.totals.at("store.miss.absent") == 2);
  CHECK(trace.totals.at("store.publish") == 2);
}

TEST_CASE("a trace shows each call of the library, within its cold segment or its assembly") {
  for (std::string const threads : {"1", "2"}) {
    workplace const place;
    check_success(run(place.prompt("generate", {"a", "b", "c", "+query"}) +
                      words{"--tokens", "1", "--threads", threads, "--trace", place.at("trace.json")}));
    written_trace const trace(place.at("trace.json"));
    auto const model = small_model();
    auto const attention = std::ssize(model.attention_layers);
    auto const linear = model.num_hidden_layers - attention;
    auto const cold = trace.named("engine.cold_segment"), assemblies = trace.named("engine.assemble");
    REQUIRE(cold.size() == 3);
    REQUIRE(assemblies.size() == 1);
    for (auto const& segment : cold) {
      CHECK(trace.count_within(segment, "segment.prefill") == linear);
      CHECK(trace.count_within(segment, "segment.attention") == attention);
      CHECK(trace.count_within(segment, "segment.short_convolution") == linear);
    }
    CHECK(trace.count_within(assemblies[0], "segment.repair") == linear);
    CHECK(trace.count_within(assemblies[0], "segment.attention") == attention);
    CHECK(trace.count_within(assemblies[0], "segment.short_convolution") == linear);
    // And nowhere else; what is counted is a range.
    CHECK(trace.count("segment.prefill") == 3 * linear);
    for (std::string const name : {"segment.prefill", "segment.attention", "segment.short_convolution"}) {
      CAPTURE(name);
      CHECK(trace.count(name) == trace.totals.at(name));
    }
    CHECK(trace.count("segment.attention") == 4 * attention);
    CHECK(trace.count("segment.short_convolution") == 4 * linear);
  }
}

TEST_CASE("a span whose reuse costs more than it saves is forwarded, and explain says so") {
  workplace const place;
  check_success(run(place.prompt("explain", {"a", "b", "+query"}) + words{"--reuse-cost", "1000"} + place.json_out()));
  auto const written = place.result();
  for (auto const& serve : written["serves"]) {
    CHECK(serve["tokens_skipped"] == 0);
    CHECK(serve["spans"][0]["why"] == "forward: to reuse it costs more");
    CHECK(serve["spans"][0]["saved"].get<double>() < 0.0);
  }
}

// ---- explain ----

TEST_CASE("explain shows misses, then hits, and equal bits") {
  workplace const place;
  auto const result = run(place.prompt("explain", {"a", "b", "a", "one", "empty", "+query"}) + place.json_out());
  check_success(result);
  auto const written = place.result();
  check_fields(written, {"seam", "threads", "serves", "logits_equal"});
  CHECK(written["logits_equal"] == true);
  REQUIRE(written["serves"].size() == 2);
  for (std::size_t serve : {0U, 1U}) {
    auto const& spans = written["serves"][serve]["spans"];
    REQUIRE(spans.size() == 6);
    for (auto const& span : spans)
      check_fields(span, {"file", "kind", "start", "tokens", "hit", "miss_reason", "decision", "why", "saved",
                          "tokens_forwarded", "tokens_prefilled", "tokens_skipped"});
    for (std::size_t i : {0U, 1U, 2U}) {
      CHECK(spans[i]["hit"] == (serve == 1));
      CHECK(spans[i]["miss_reason"] == (serve == 1 ? json() : json("absent")));
      CHECK(spans[i]["decision"] == "reuse");
    }
    for (std::size_t i : {3U, 4U, 5U}) {
      CHECK(spans[i]["hit"].is_null());
      CHECK(spans[i]["decision"] == "forward");
    }
    CHECK(spans[3]["why"] == "forward: it is no longer than its seam");
    CHECK(spans[5]["kind"] == "fresh");
  }
  CHECK(written["serves"][0]["tokens_prefilled"] == 70);
  CHECK(written["serves"][0]["tokens_skipped"] == 32);  // a's second place
  CHECK(written["serves"][1]["tokens_prefilled"] == 0);
  CHECK(written["serves"][1]["tokens_skipped"] == 40 + 22 + 32);
  for (std::string const shown : {"miss: absent", "hit", "reuse: all but its seam", "forward: it is fresh",
                                  "Both times the logits are the same bits."})
    CHECK_THAT(result.out, Catch::Contains(shown));
}

TEST_CASE("explain compares no logits where there are none") {
  workplace const place;
  auto const result = run(place.prompt("explain", {"a", "+empty"}) + place.json_out());
  check_success(result);
  CHECK(place.result()["logits_equal"].is_null());
  CHECK_THAT(result.out, Catch::Contains("There are no logits to compare."));
  CHECK_THAT(result.out, !Catch::Contains("same bits"));
}

TEST_CASE("a bar is shown on a terminal and wiped") {
  workplace const place;
  auto const shown = engine_test::terminal_output(HYPIC_ENGINE_PROGRAM, place.prompt("explain", {"a", "b", "c"}));
  CHECK_THAT(shown, Catch::Contains("cold segments [") && Catch::Contains("2/3"));
  CHECK(shown.ends_with(" \r"));
}

// ---- Help and usage ----

TEST_CASE("help is printed for the program and each command") {
  auto const all = run({"--help"});
  check_success(all);
  for (std::string const command : {"compare", "generate", "explain"}) {
    CHECK_THAT(all.out, Catch::Contains(command));
    for (auto const& given : {words{command, "--help"}, words{command, "--nonsense", "--help"}}) {
      auto const one = run(given);
      check_success(one);
      for (std::string const option : {"--checkpoint F", "--threads N", "--json OUT", "--seam N", "--help"})
        CHECK_THAT(one.out, Catch::Contains(option));
    }
  }
}

TEST_CASE("a command line that says nothing doable is refused with code 2") {
  workplace const place;
  auto const refused = [&](words const& given, std::string const& message) {
    CAPTURE(given);
    check_refused(run(given), bad_usage, message);
    CHECK(place.untouched());
  };
  auto const compare = place.compare({"a"}) + place.outputs();
  auto const generate = place.prompt("generate", {"+a"}) + place.json_out();
  refused({}, "found no command; expected one");
  refused({"serve"}, "found the command 'serve'; expected one of compare, generate, explain");
  refused({""}, "found the command ''");
  refused({"ser\nve"}, "'ser\\x0ave'");
  refused(compare + words{"--speed", "3"}, "found the option '--speed'; expected one of --checkpoint");
  refused(generate + words{"--segments", "a"}, "found the option '--segments'");
  refused(words{"compare", "stray"}, "found 'stray'; expected an option");
  refused(generate + words{"--tokens", "3", "4"}, "found '4'; expected an option");
  refused(generate + words{"--tokens"}, "option --tokens: found no value; expected N");
  refused(generate + words{"--tokens", "--seam", "8"}, "option --tokens: found no value; expected N");
  refused(words{"generate", "--checkpoint", place.checkpoint(), "--cached"}, "option --cached: found no value");
  refused(words{"generate", "--checkpoint", "", "--fresh", "f"}, "option --checkpoint: found an empty value");
  refused(compare + words{"--seam", "8", "--seam", "8"}, "option --seam: found twice; expected once");
  refused(compare + words{"--query", "q"}, "option --query: found twice; expected once");
  refused(compare + words{"--json", "j"}, "option --json: found twice");
  for (std::string const number : {"x", "8x", "0x8", "1e3", "-1", "+1", " 1", "1.5", "99999999999999999999"}) {
    refused(compare + words{"--seam", number}, "option --seam: found '" + number + "'; expected a whole number from 0");
    refused(compare + words{"--threads", number}, "option --threads: found '" + number + "'; expected a whole number");
    refused(generate + words{"--tokens", number}, "option --tokens: found '" + number + "'; expected a whole number");
  }
  refused(compare + words{"--threads", "0"}, "expected a whole number from 1 to 1024");
  refused({"compare"}, "option --checkpoint: found nothing; expected --checkpoint F");
  refused({"compare", "--checkpoint", place.checkpoint(), "--query", place.at("query")},
          "option --segments: found nothing");
  refused({"compare", "--checkpoint", place.checkpoint(), "--segments", place.at("a")},
          "option --query: found nothing");
  refused({"explain", "--checkpoint", place.checkpoint()}, "options --cached and --fresh: found neither");
  refused(place.compare({"a"}) + words{"--json", place.at("same"), "--logits", place.at("same")},
          "options --logits and --json: found one file for both");
  refused(place.compare({"a"}) + words{"--json", place.at("same"), "--logits", place.at("./same")},
          "options --logits and --json: found one file for both");
  refused(place.prompt("explain", {"+a"}) + words{"--json", place.at("same"), "--trace", place.at("./same")},
          "options --json and --trace: found one file for both");
}

// ---- Inputs ----

TEST_CASE("a checkpoint that is none is refused in one line, and nothing is written") {
  workplace const place;
  auto const refused = [&](std::string const& name, std::string const& message) {
    CAPTURE(name);
    for (auto given :
         {place.compare({"a"}) + place.outputs(), place.prompt("generate", {"a", "+query"}) + place.json_out(),
          place.prompt("explain", {"a", "+query"}) + place.json_out()}) {
      given[2] = place.at(name);
      check_refused(run(given), failure, message);
      CHECK_FALSE(fs::exists(place.at("out.json")));
      CHECK_FALSE(fs::exists(place.at("out.safetensors")));
    }
  };
  auto const bytes = text_of(place.checkpoint());
  refused("absent", "absent': found nothing there; expected a file");
  place.write("none", "");
  refused("none", "found 0 bytes");
  place.write("cut", bytes.substr(0, bytes.size() - 1));
  refused("cut", "cut'");
  place.write("long", bytes + "x");
  refused("long", "long'");
  place.write("lying", "\xff\xff\xff\xff\xff\xff\xff\x7f" + bytes.substr(8));
  refused("lying", "lying'");
  place.write("garbage", std::string(100, 'g'));
  refused("garbage", "garbage'");
  place.write("index.safetensors.index.json", R"({"weight_map":{"t":"absent.safetensors"}})");
  refused("index.safetensors.index.json", "absent.safetensors': found nothing there");

  auto const spoiled = [&](std::string const& name, auto const& spoil, std::string const& message) {
    auto made = synthetic::make(small_model());
    spoil(made);
    synthetic::write_file(made, place.at(name));
    refused(name, message);
  };
  spoiled(
      "nan", [](auto& m) { m.at("model.norm.weight").values[1] = std::nanf(""); }, "expected finite weights");
  spoiled(
      "type", [](auto& m) { m.config["model_type"] = "rwkv7"; }, "'model_type': found string \"rwkv7\"");
  spoiled(
      "field", [](auto& m) { m.config["bogus"] = 1; }, "bogus");
  spoiled(
      "missing", [](auto& m) { m.tensors.pop_back(); }, "found nothing; expected a tensor of shape");
  spoiled(
      "misshapen", [](auto& m) { m.tensors.back().shape.push_back(1); }, "found shape [");
}

TEST_CASE("prompt files that cannot be read, and prompts that cannot be served, are refused in one line") {
  workplace const place;
  auto const refused = [&](words const& given, std::string const& message) {
    CAPTURE(given);
    check_refused(run(given), failure, message);
    CHECK(place.untouched());
  };
  for (std::string const command : {"generate", "explain"}) {
    refused(place.prompt(command, {"a", "absent"}) + place.json_out(), "absent': found nothing there");
    refused(place.prompt(command, {"+."}) + place.json_out(), "found a folder; expected a file");
    refused(place.prompt(command, {"empty", "+empty"}) + place.json_out(), "prompt tokens is 0, expected at least 1");
    refused(place.prompt(command, {"whole-context", "+one"}) + place.json_out(), "expected at most 512");
  }
  refused(place.compare({"a", "absent"}) + place.outputs(), "absent': found nothing there");
  refused(place.compare({"a"}, "absent") + place.outputs(), "absent': found nothing there");
  refused(place.compare({"."}) + place.outputs(), "found a folder; expected a file");
  refused(place.compare({"empty"}, "empty") + place.outputs(), "prompt tokens is 0, expected at least 1");
  refused(place.compare({"whole-context"}, "one") + place.outputs(), "is 513, expected at most 512");
  if (::geteuid() != 0) {  // root reads everything
    ::chmod(place.at("b").c_str(), 0);
    refused(place.compare({"b"}) + place.outputs(), "cannot be opened");
  }

  auto narrow = small_model();
  narrow.vocab_size = 32;
  workplace const small(narrow);
  check_refused(run(small.compare({"a"}) + small.outputs()), failure, "expected 0 to 31");
  CHECK(small.untouched());
}

TEST_CASE("results that have no place are refused before the work, and older files stay as they were") {
  workplace const place;
  auto const refused = [&](words const& given, std::string const& message) {
    CAPTURE(given);
    check_refused(run(given), failure, message);
  };
  refused(place.compare({"a"}) + words{"--json", place.at("no/out.json")}, "found no folder to hold it");
  refused(place.compare({"a"}) + words{"--logits", place.at(".")}, "found a folder; expected a file to write");
  refused(place.prompt("generate", {"+a"}) + words{"--json", place.at("no/out.json")}, "found no folder to hold it");
  refused(place.prompt("explain", {"+a"}) + words{"--json", place.at("")}, "found a folder; expected a file to write");
  CHECK(place.untouched());

  place.write("out.json", "older");
  if (::geteuid() != 0) {  // root writes everywhere
    ::chmod(place.at(".").c_str(), 0500);
    for (auto const& given : {place.compare({"a"}), place.prompt("generate", {"+a"}), place.prompt("explain", {"+a"})})
      refused(given + place.json_out(), "found a folder that cannot be written");
    ::chmod(place.at(".").c_str(), 0700);
  }
  check_refused(run(place.compare({"absent"}) + place.json_out()), failure, "found nothing there");
  CHECK(text_of(place.at("out.json")) == "older");
  check_success(run(place.prompt("explain", {"+a"}) + place.json_out()));
  CHECK(place.result()["logits_equal"] == true);
}

TEST_CASE("where one result cannot be written none is, and older files stay as they were") {
  workplace const place;
  auto const refused = [&](words const& given, std::string const& message) {
    CAPTURE(given);
    auto const result = run(given);
    CHECK(result.code == failure);
    CHECK(engine_test::is_one_line(result.err.substr(0, result.err.size() - 1)));
    CHECK_THAT(result.err, Catch::Contains(message));
  };
  words const full = {"--logits", "/dev/full"};
  refused(place.compare({"a"}) + place.json_out() + full, "'/dev/full': cannot write");
  refused(place.compare({"a"}) + full + place.json_out(), "'/dev/full': cannot write");
  for (std::string const command : {"generate", "explain"}) {
    auto const given = place.prompt(command, {"a", "+query"});
    refused(given + place.json_out() + words{"--trace", "/dev/full"}, "'/dev/full': cannot write");
    refused(given + words{"--json", "/dev/full", "--trace", place.at("trace.json")}, "'/dev/full': cannot write");
  }
  CHECK(place.untouched());

  place.write("out.json", "older");
  refused(place.compare({"a"}) + place.json_out() + full, "'/dev/full': cannot write");
  CHECK(text_of(place.at("out.json")) == "older");
}

TEST_CASE("a result beyond a limit of file sizes is a failure, and nothing is written") {
  workplace const place;
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  rlimit const narrow{.rlim_cur = 1 << 16, .rlim_max = before.rlim_max};  // what is printed fits, the logits do not
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &narrow) == 0);
  auto const result = run(place.compare({"a"}) + place.outputs());
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK(result.code == failure);
  CHECK_THAT(result.err, Catch::Contains("out.safetensors': cannot write"));
  CHECK(place.untouched());
}

TEST_CASE("a result replaces no file that is read, however it is spelled") {
  workplace const place;
  fs::create_hard_link(place.at("a"), place.at("hard"));
  fs::create_symlink("query", place.at("soft"));
  auto const before = place.entries();
  for (std::string const name : {"a", "./a", "hard", "soft", "query", "model.safetensors"}) {
    for (std::string const option : {"--json", "--logits"}) {
      CAPTURE(name, option);
      check_refused(run(place.compare({"a"}) + words{option, place.at(name)}), failure,
                    "found a file that is read; expected another to write");
    }
    for (std::string const option : {"--json", "--trace"}) {
      check_refused(run(place.prompt("generate", {"a", "+query"}) + words{option, place.at(name)}), failure,
                    "found a file that is read; expected another to write");
    }
  }
  CHECK(text_of(place.at("a")) == letters(engine_test::text_tokens("ruth.txt", 0, 40)));
  CHECK(place.entries() == before);

  check_success(run(place.compare({"a"}) + words{"--json", "/dev/null", "--logits", "/dev/null"}));
}

TEST_CASE("a result replaces no shard, index or config of a checkpoint") {
  workplace const place;
  fs::create_directory(place.at("sharded"));
  auto const index = synthetic::write_sharded(synthetic::make(small_model()), place.at("sharded"), 2);
  for (auto const& checkpoint : {fs::path(place.at("sharded")), index}) {
    auto given = place.compare({"a"});
    given[2] = checkpoint;
    std::size_t files = 0;
    for (auto const& entry : fs::directory_iterator(place.at("sharded"))) {
      CAPTURE(entry.path());
      check_refused(run(given + words{"--json", entry.path()}), failure, "found a file that is read");
      ++files;
    }
    CHECK(files == 4);
    check_success(run(given + words{"--json", place.at("sharded/out.json")}));
    fs::remove(place.at("sharded/out.json"));
  }
}

TEST_CASE("weights under which fp32 overflows give a refusal, not tokens") {
  workplace const place;
  auto made = synthetic::make(small_model());
  made.at("lm_head.weight").values.assign(made.at("lm_head.weight").values.size(), 3e38F);
  synthetic::write_file(made, place.checkpoint());
  for (auto const& given :
       {place.compare({"a"}), place.prompt("generate", {"+query"}), place.prompt("explain", {"a", "+query"})}) {
    check_refused(run(given + place.json_out()), failure, "the logits: found one that is not finite");
  }
  CHECK(place.untouched());
}

TEST_CASE("a result that cannot be printed is a failure") {
  workplace const place;
  auto const result = engine_test::run_program(HYPIC_ENGINE_PROGRAM, place.prompt("explain", {"+a"}) + place.json_out(),
                                               engine_test::output::full_device);
  check_refused(result, failure, "standard output: cannot be written");
  CHECK(place.untouched());
}

TEST_CASE("relative paths, odd file names and a folder as checkpoint are taken") {
  workplace const place;
  std::string const odd = "odd \xff\n\"name";
  place.write(odd, "some text that is longer than a seam");
  auto given = place.prompt("explain", {odd, "+query"}) + place.json_out();
  given[2] = place.at(".");
  check_success(run(given));
  CHECK_THAT(place.result()["serves"][0]["spans"][0]["file"].get<std::string>(), Catch::Contains("odd \\xff\\n\"name"));
}

}  // namespace
