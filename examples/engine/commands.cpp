// SPDX-License-Identifier: Apache-2.0
#include "engine/commands.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <thread>

#include "engine/checkpoint.hpp"
#include "engine/error.hpp"
#include "engine/files.hpp"
#include "engine/modes.hpp"
#include "engine/outputs.hpp"
#include "engine/progress_bar.hpp"
#include "engine/safetensors.hpp"
#include "engine/serving.hpp"
#include "engine/text_table.hpp"
#include "hypic/adapter/trace.hpp"
#include "hypic/store/memory_store.hpp"

namespace hypic_engine {
namespace {

using json = nlohmann::ordered_json;
using takes = option_rule::takes;

// ---- Options that commands share ----

constexpr option_rule checkpoint_rule{"--checkpoint", takes::one_value, "F",
                                      "a safetensors file, an index of shards, or the folder of either", true};
constexpr option_rule seam_rule{"--seam", takes::one_value, "N",
                                "tokens at the start of a reused span that are forwarded again (default 8)"};
constexpr option_rule threads_rule{"--threads", takes::one_value, "N", "threads (default: those of the machine)"};
constexpr option_rule json_rule{"--json", takes::one_value, "OUT", "write the result to this file"};
constexpr option_rule reuse_cost_rule{"--reuse-cost", takes::one_value, "N",
                                      "forwarded tokens that reusing a span costs beside its seam (default 0)"};
constexpr option_rule trace_rule{"--trace", takes::one_value, "OUT", "write a trace for chrome://tracing to this file"};
constexpr option_rule cached_rule{"--cached", takes::values, "F", "files of bytes, each a cached span of the prompt",
                                  false,      true};
constexpr option_rule fresh_rule{
    "--fresh", takes::values, "F", "files of bytes, each a fresh span; both in the prompt's order", false, true};

std::int32_t seam_of(arguments const& given) {
  constexpr std::int64_t usual = 8;
  constexpr std::int64_t most = 1 << 20;
  return static_cast<std::int32_t>(given.number("--seam", usual, 0, most));
}

int threads_of(arguments const& given) {
  constexpr std::int64_t most = 1024;
  auto const hardware = std::clamp<std::int64_t>(std::thread::hardware_concurrency(), 1, most);
  return static_cast<int>(given.number("--threads", hardware, 1, most));
}

// ---- Files ----

std::vector<std::int32_t> read_tokens(std::string const& path) {
  auto const bytes = read_file(path);
  std::vector<std::int32_t> tokens(bytes.size());
  std::transform(bytes.begin(), bytes.end(), tokens.begin(), [](std::byte b) { return std::to_integer<int>(b); });
  return tokens;
}

/// Checks where results go. `--checkpoint` and the values of `read` are what the work reads.
void require_places(arguments const& given, std::initializer_list<std::string_view> written,
                    std::initializer_list<std::string_view> read) {
  auto inputs = checkpoint_files(given.text(checkpoint_rule.name));
  for (auto const& option : given.all())
    if (std::ranges::find(read, option.name) != read.end())
      inputs.insert(inputs.end(), option.values.begin(), option.values.end());
  hypic_engine::require_places(given, std::span(written.begin(), written.size()), inputs);
}

/// Adds a text file to a result where one was asked for.
void add_text(command_result& result, std::string const& path, std::string const& text) {
  if (path.empty()) return;
  auto const bytes = std::as_bytes(std::span(text));
  result.files.push_back({path, {bytes.begin(), bytes.end()}});
}

void add_json(command_result& result, std::string const& path, json const& content) {
  add_text(result, path, content.dump(2) + "\n");
}

/// Printable ASCII as it is; the rest, and the backslash, as an escape.
std::string escaped(std::span<std::int32_t const> tokens) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (auto const token : tokens) {
    if (token == '\n') {
      text += "\\n";
    } else if (token == '\\') {
      text += "\\\\";
    } else if (token >= 0x20 && token < 0x7f) {
      text += static_cast<char>(token);
    } else if (token < 256) {
      auto const byte = static_cast<std::size_t>(token);
      text += {'\\', 'x', digits[byte >> 4U], digits[byte & 15U]};
    } else {
      text += "\\{" + std::to_string(token) + "}";
    }
  }
  return text;
}

/// A file name as JSON holds it: its bytes need not be UTF-8.
std::string name_in_json(std::string const& path) {
  std::vector<std::int32_t> bytes;
  for (char const c : path) bytes.push_back(static_cast<unsigned char>(c));
  return escaped(bytes);
}

std::vector<std::string> names_in_json(std::vector<std::string> const& paths) {
  std::vector<std::string> names;
  for (auto const& path : paths) names.push_back(name_in_json(path));
  return names;
}

// ---- compare ----

constexpr std::array compare_rules{
    checkpoint_rule,
    option_rule{"--segments", takes::values, "F", "files of bytes, each a cached span, in the prompt's order", true},
    option_rule{"--query", takes::one_value, "F", "a file of bytes, the fresh span at the end", true},
    seam_rule,
    option_rule{"--logits", takes::one_value, "OUT", "write each mode's logits of the query to this safetensors file"},
    threads_rule,
    json_rule};

document_prompt read_prompt(std::vector<std::string> const& segments, std::string const& query) {
  document_prompt prompt;
  for (auto const& path : segments) prompt.documents.push_back(read_tokens(path));
  prompt.query = read_tokens(query);
  prompt.unshuffled.resize(segments.size());
  std::iota(prompt.unshuffled.begin(), prompt.unshuffled.end(), std::size_t{0});
  std::stable_sort(prompt.unshuffled.begin(), prompt.unshuffled.end(),
                   [&](std::size_t left, std::size_t right) { return segments[left] < segments[right]; });
  return prompt;
}

json json_of(mode_outcome const& outcome) {
  return {{"mode", name_of(outcome.which)},
          {"kl", outcome.kl},
          {"top1", outcome.top1},
          {"nll_full", outcome.nll_full},
          {"nll", outcome.nll},
          {"state_error", outcome.state_error},
          {"tokens_forwarded", outcome.tokens_forwarded},
          {"ttft_ms", outcome.ttft_ms},
          {"cold_ms", outcome.cold_ms}};
}

std::string table_of(std::vector<mode_outcome> const& outcomes) {
  text_table table({"mode", "kl", "top1", "nll_full", "nll", "state_error", "tokens_forwarded", "ttft_ms", "cold_ms"});
  for (auto const& o : outcomes)
    table.add({std::string(name_of(o.which)), cell(o.kl), cell(o.top1), cell(o.nll_full), cell(o.nll),
               cell(o.state_error), std::to_string(o.tokens_forwarded), cell(o.ttft_ms), cell(o.cold_ms)});
  return table.text();
}

void add_logits(command_result& result, std::string const& path, std::vector<mode_outcome> const& outcomes) {
  if (path.empty()) return;
  std::vector<tensor> tensors;
  for (auto const& o : outcomes)
    tensors.push_back({std::string(name_of(o.which)),
                       element_type::f32,
                       {o.logits.rows(), o.logits.width()},
                       std::as_bytes(std::span(o.logits.data()))});
  result.files.push_back({path, serialize_safetensors({}, tensors)});
}

command_result run_compare(arguments const& given) {
  auto const segments = given.values("--segments");
  auto const query = given.text("--query");
  auto const seam = seam_of(given);
  auto const threads = threads_of(given);
  auto const logits_path = given.text("--logits");
  auto const json_path = given.text("--json");
  require_places(given, {"--logits", "--json"}, {"--segments", "--query"});

  auto const prompt = read_prompt(segments, query);
  progress_bar bar;
  mode_comparison const comparison(load_checkpoint(given.text("--checkpoint")), seam, threads,
                                   bar.show("cold segments"));
  auto const outcomes = comparison.run(prompt);

  json content{{"checkpoint", name_in_json(given.text("--checkpoint"))},
               {"segments", names_in_json(segments)},
               {"query", name_in_json(query)},
               {"seam", seam},
               {"threads", threads},
               {"modes", json::array()}};
  for (auto const& outcome : outcomes) content["modes"].push_back(json_of(outcome));
  command_result result{table_of(outcomes), {}};
  add_logits(result, logits_path, outcomes);
  add_json(result, json_path, content);
  return result;
}

// ---- generate and explain: prompts of cached and fresh spans ----

/// A prompt as its files give it. Spans at its end that hold nothing are left out of what is served, so that the last
/// span served is the one whose logits decoding needs.
class prompt_files {
 public:
  prompt_files(engine const& with, arguments const& given) {
    for (auto const& option : given.all()) {
      if (option.name != cached_rule.name && option.name != fresh_rule.name) continue;
      for (auto const& path : option.values) {
        auto tokens = read_tokens(path);
        paths_.push_back(path);
        spans_.push_back(option.name == cached_rule.name ? with.cached(std::move(tokens))
                                                         : with.fresh(std::move(tokens)));
      }
    }
  }

  std::vector<std::string> const& paths() const noexcept { return paths_; }
  std::vector<hypic::prompt_span> served() const {
    auto spans = spans_;
    while (!spans.empty() && spans.back().tokens.empty()) spans.pop_back();
    return spans;
  }
  /// Accounts of all of the spans, given those of the served ones.
  std::vector<span_account> accounts(served_prompt const& served) const {
    auto accounts = served.spans;
    while (accounts.size() < spans_.size())
      accounts.push_back({.kind = spans_[accounts.size()].kind, .start = served.result.plan.prompt_tokens});
    return accounts;
  }

 private:
  std::vector<std::string> paths_;
  std::vector<hypic::prompt_span> spans_;
};

void require_spans(arguments const& given) {
  if (!given.has(cached_rule.name) && !given.has(fresh_rule.name))
    throw usage_error("options --cached and --fresh: found neither; expected the spans of a prompt");
}

std::string_view name_of(hypic::span_kind kind) { return kind == hypic::span_kind::cached ? "cached" : "fresh"; }

json json_of(std::string const& path, span_account const& account) {
  json span{{"file", name_in_json(path)},
            {"kind", name_of(account.kind)},
            {"start", account.start},
            {"tokens", account.tokens},
            {"hit", nullptr},
            {"miss_reason", nullptr},
            {"decision", account.decision == hypic::span_decision::reuse ? "reuse" : "forward"},
            {"why", decision_text(account)},
            {"saved", account.saved},
            {"tokens_forwarded", account.tokens_forwarded},
            {"tokens_prefilled", account.tokens_prefilled},
            {"tokens_skipped", account.tokens_skipped}};
  if (account.lookup) span["hit"] = account.lookup->hit;
  if (account.lookup && !account.lookup->hit) span["miss_reason"] = to_string(account.lookup->reason);
  return span;
}

json json_of(prompt_files const& files, served_prompt const& served) {
  json spans = json::array();
  auto const accounts = files.accounts(served);
  for (std::size_t i = 0; i < accounts.size(); ++i) spans.push_back(json_of(files.paths()[i], accounts[i]));
  return {{"prompt_tokens", served.result.plan.prompt_tokens},
          {"tokens_forwarded", served.result.plan.rows()},
          {"tokens_prefilled", served.tokens_prefilled()},
          {"tokens_skipped", served.tokens_skipped()},
          {"spans", std::move(spans)}};
}

std::string table_of(prompt_files const& files, served_prompt const& served) {
  text_table table({"span", "kind", "start", "tokens", "store", "decision", "forwarded", "prefilled", "skipped"});
  auto const accounts = files.accounts(served);
  for (std::size_t i = 0; i < accounts.size(); ++i) {
    auto const& a = accounts[i];
    table.add({name_in_json(files.paths()[i]), std::string(name_of(a.kind)), std::to_string(a.start),
               std::to_string(a.tokens), lookup_text(a), decision_text(a), std::to_string(a.tokens_forwarded),
               std::to_string(a.tokens_prefilled), std::to_string(a.tokens_skipped)});
  }
  std::ostringstream text;
  text << table.text() << served.result.plan.rows() << " of " << served.result.plan.prompt_tokens
       << " tokens forwarded, " << served.tokens_prefilled() << " prefilled alone, " << served.tokens_skipped()
       << " skipped\n";
  return text.str();
}

constexpr std::int64_t unbounded_store = std::numeric_limits<std::int64_t>::max();

constexpr std::array generate_rules{
    checkpoint_rule, cached_rule,
    fresh_rule,      option_rule{"--tokens", takes::one_value, "N", "tokens to generate (default 32)"},
    seam_rule,       threads_rule,
    json_rule,       trace_rule,
    reuse_cost_rule};

double reuse_cost_of(arguments const& given) {
  return static_cast<double>(given.number("--reuse-cost", 0, 0, std::int64_t{1} << 40));
}

/// What generate and explain begin with: the options checked, the model loaded, an engine before an empty store.
struct serving_session {
  explicit serving_session(arguments const& options)
      : given(options),
        loaded(load_checked(given), std::max(seam, 8)),
        store(unbounded_store, listener()),
        serving(loaded, store,
                {.seam_rows = seam,
                 .threads = threads,
                 .costs = {.span = reuse_cost, .token = 0.0},
                 .tell = bar.show("cold segments"),
                 .watch = listener()}),
        files(serving, given) {}

  arguments const& given;
  std::int32_t seam = seam_of(given);
  int threads = threads_of(given);
  double reuse_cost = reuse_cost_of(given);
  model loaded;
  progress_bar bar;
  hypic::trace watch;
  hypic::memory_store store;
  engine serving;
  prompt_files files;

  /// The result with the files that were asked for; `content` lacks what both commands have.
  command_result result(std::string text, json content) const {
    content["seam"] = seam;
    content["threads"] = threads;
    command_result made{std::move(text), {}};
    add_json(made, given.text("--json"), content);
    add_text(made, given.text("--trace"), watch.json());
    return made;
  }

 private:
  /// Whoever asks for no trace pays for none.
  hypic::observer* listener() { return given.text("--trace").empty() ? nullptr : &watch; }

  /// The checkpoint; what the numbers among the options do not say is checked before it is read.
  static checkpoint load_checked(arguments const& options) {
    require_spans(options);
    require_places(options, {"--json", "--trace"}, {cached_rule.name, fresh_rule.name});
    return load_checkpoint(options.text("--checkpoint"));
  }
};

std::vector<float> last_logits(served_prompt const& served) {
  auto const& logits = served.result.logits;
  if (served.result.plan.spans.back().decision == hypic::span_decision::reuse)
    fail(
        "the prompt's end: found a cached span that is reused, which gives no logits; expected --fresh with at least "
        "one token, or --tokens 0");
  return {logits.data().end() - logits.width(), logits.data().end()};
}

command_result run_generate(arguments const& given) {
  constexpr std::int64_t usual = 32;
  constexpr std::int64_t most = 1 << 24;
  auto const tokens = given.number("--tokens", usual, 0, most);
  serving_session session(given);
  auto served = serve(session.serving, session.files.served(), tokens);
  std::vector<std::int32_t> generated;
  if (tokens > 0)
    generated = session.serving.generate(served.memory, served.result.plan.prompt_tokens, last_logits(served), tokens,
                                         session.bar.show("tokens"));

  auto content = json_of(session.files, served);
  content["generated"] = generated;
  content["text"] = escaped(generated);
  return session.result(escaped(generated) + "\n\n" + table_of(session.files, served), std::move(content));
}

constexpr std::array explain_rules{checkpoint_rule, cached_rule, fresh_rule, seam_rule,
                                   threads_rule,    json_rule,   trace_rule, reuse_cost_rule};

command_result run_explain(arguments const& given) {
  serving_session session(given);
  auto const first = serve(session.serving, session.files.served());
  auto const second = serve(session.serving, session.files.served());
  json equal;  // null where there are none, as where the last span is reused whole
  std::string said = "There are no logits to compare.";
  if (first.result.logits.rows() > 0) {
    equal = std::ranges::equal(std::as_bytes(std::span(first.result.logits.data())),
                               std::as_bytes(std::span(second.result.logits.data())));
    said = equal == true ? "Both times the logits are the same bits." : "The logits differ.";
  }
  return session.result("The first time:\n" + table_of(session.files, first) + "\nThe second time:\n" +
                            table_of(session.files, second) + "\n" + said + "\n",
                        {{"serves", {json_of(session.files, first), json_of(session.files, second)}},
                         {"logits_equal", std::move(equal)}});
}

constexpr std::array commands{
    command{"compare", "one prompt of documents and a query, served in every mode, against full recompute",
            compare_rules, run_compare},
    command{"generate", "serve a prompt of cached and fresh spans, and decode greedily from it", generate_rules,
            run_generate},
    command{"explain", "serve a prompt twice: what was found, reused, forwarded and skipped, and why", explain_rules,
            run_explain}};

}  // namespace

std::span<command const> all_commands() { return commands; }

}  // namespace hypic_engine
